"""The RocketMQ remoting protocol without I/O: frames, commands, typed headers and bodies."""
