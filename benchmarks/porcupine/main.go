// Command porcupine judges histories of one queue with porcupine, for comparison with trivet analyze.
//
// The model is a log: append returns an offset, read returns the values from an offset on, tail returns the length. The
// state is the last node of an immutable list, so that a step costs constant memory and time, and equality is that of
// rolling hashes: whatever grows faster than the history is the search's own.
//
// Input, one operation a line, fields separated by spaces, and an empty line between two histories:
//
//	client invoke_ns complete_ns function offset values...
//
// with complete_ns -1 for an unknown outcome, function a (append), r (read), t (tail) or p (a part of a batch of unknown
// outcome), and values as integers. A part's offset is the number of its batch; its values are its place in the batch,
// and what it appends, which it does directly behind the part before it, or not at all.
//
// Output, one object of JSON a line for each history.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	function byte
	known    bool
	offset   int
	values   []int64
}

type node struct {
	before *node
	length int
	value  int64
	hash   uint64
	part   part
}

// part tells which part of which batch of unknown outcome appended a value, if one did.
type part struct {
	batch, place int64
}

var none = part{-1, -1}
var empty = &node{part: none}

func (n *node) with(value int64, by part) *node {
	mixed := (n.hash ^ uint64(value+1)) * 0x9E3779B97F4A7C15
	return &node{n, n.length + 1, value, mixed ^ mixed>>29, by}
}

// holds tells whether values stand in the log from offset on.
func (n *node) holds(offset int, values []int64) bool {
	if offset+len(values) > n.length {
		return false
	}
	for n.length > offset+len(values) {
		n = n.before
	}
	for place := len(values) - 1; place >= 0; place-- {
		if n.value != values[place] {
			return false
		}
		n = n.before
	}
	return true
}

func step(state, input, _ interface{}) (bool, interface{}) {
	log, op := state.(*node), input.(*operation)
	switch op.function {
	case 'a':
		if op.known && log.length != op.offset {
			return false, state
		}
		for _, value := range op.values {
			log = log.with(value, none)
		}
		return true, log
	case 'p':
		by := part{int64(op.offset), op.values[0]}
		if by.place == 0 || log.part == (part{by.batch, by.place - 1}) {
			return true, log.with(op.values[1], by)
		}
		return true, state
	case 'r':
		if len(op.values) == 0 {
			return log.length <= op.offset, state
		}
		return log.holds(op.offset, op.values), state
	default:
		return log.length == op.offset, state
	}
}

var model = porcupine.Model{
	Init: func() interface{} { return empty },
	Step: step,
	Equal: func(one, other interface{}) bool {
		a, b := one.(*node), other.(*node)
		return a == b || a.length == b.length && a.hash == b.hash && a.part == b.part
	},
}

// read gives the histories of a file.
func read(path string) ([][]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	histories := [][]porcupine.Operation{nil}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			histories = append(histories, nil)
			continue
		}
		if len(fields) < 5 {
			return nil, fmt.Errorf("%s: line %d: %d fields", path, number, len(fields))
		}
		var numbers []int64
		for place, field := range fields {
			if place == 3 {
				continue
			}
			number, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return nil, err
			}
			numbers = append(numbers, number)
		}
		op := &operation{fields[3][0], numbers[2] >= 0, int(numbers[3]), numbers[4:]}
		end := numbers[2]
		if !op.known {
			end = math.MaxInt64
		}
		last := len(histories) - 1
		histories[last] = append(histories[last], porcupine.Operation{
			ClientId: int(numbers[0]), Input: op, Call: numbers[1], Output: nil, Return: end,
		})
	}
	return histories, lines.Err()
}

func main() {
	limit := flag.Duration("limit", 5*time.Minute, "after this long the answer about a history is Unknown")
	flag.Parse()
	histories, err := read(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	answers := json.NewEncoder(os.Stdout)
	for _, history := range histories {
		begin := time.Now()
		result := porcupine.CheckOperationsTimeout(model, history, *limit)
		answers.Encode(map[string]interface{}{
			"verdict": result, "operations": len(history), "search_seconds": time.Since(begin).Seconds(),
		})
	}
}
