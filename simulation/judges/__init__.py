"""Models of what is true, and judges that hold nodes and clients to it while a run goes on."""
