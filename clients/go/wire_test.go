package bstar

import (
	"bytes"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The examples of section 3.5: the page is the data of this test and of the Python library's.
func examples(t testing.TB) map[string][][]byte {
	page, err := os.ReadFile("../../docs/protocol/native.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "### 3.5 Examples")
	text, _, _ = strings.Cut(text, "### 3.6")
	found := map[string][][]byte{}
	name, last := "", ""
	for line := range strings.Lines(text) {
		columns := regexp.MustCompile(`^    (.{35}) (.*)\n$`).FindStringSubmatch(line)
		if columns == nil {
			continue
		}
		if title := strings.TrimSpace(columns[1]); title != "" {
			name = strings.Replace(title, "…", last+" …", 1)
			if name == title {
				last = title
			}
			found[name] = [][]byte{nil}
		}
		for number, part := range strings.Split(columns[2], "|") {
			octets, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(part), ".", ""))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if number > 0 {
				found[name] = append(found[name], nil)
			}
			at := len(found[name]) - 1
			found[name][at] = append(found[name][at], octets...)
		}
	}
	return found
}

func TestEveryExampleOfThePageIsReadAndWrittenAlike(t *testing.T) {
	all := examples(t)
	if len(all) < 25 {
		t.Fatalf("only %d examples", len(all))
	}
	for name, frames := range all {
		h, ok := parseHeader(frames[0])
		if !ok || !bytes.Equal(h.encode(), frames[0]) {
			t.Errorf("%s: %x became %x", name, frames[0], h.encode())
		}
		if h.command == cmdRequests || h.command == cmdFinals {
			rows, ok := parseBatch(frames[1:], h.command == cmdRequests)
			if !ok || len(rows) != 2 {
				t.Errorf("%s: rows %v", name, rows)
			} else if rows[0].extensions == nil {
				table, blob := encodeBatch(rows, h.command == cmdRequests)
				if !bytes.Equal(table, frames[1]) || !bytes.Equal(blob, frames[2]) {
					t.Errorf("%s: table %x, blob %x", name, table, blob)
				}
			}
		}
		if h.command == cmdPong || h.command == cmdNotActive || h.command == cmdWelcome {
			told, ok := parseStatus(frames[1])
			if !ok || told.state != 4 || told.peer != stateActive || !told.isNever || told.can&canOnce == 0 {
				t.Errorf("%s: %+v", name, told)
			}
		}
	}
}

func TestADeclinedExampleHasCodeTextAndData(t *testing.T) {
	frames := examples(t)[`ERROR, "Declined sold: out", [7]`]
	declined := declinedOf(frames[1], frames[2:])
	if declined == nil || declined.Code != "sold" || declined.Text != "out" || string(declined.Data) != "[7]" {
		t.Errorf("%+v", declined)
	}
}

func TestBatchesBeyondTheBoundsAreUnreadable(t *testing.T) {
	one := row{number: 1, body: []byte("a")}
	table, blob := encodeBatch([]row{one, one}, false)
	for what, frames := range map[string][][]byte{
		"one number twice": {table, blob},
		"no row":           {{}, {}},
		"a torn row":       {table[:11], blob},
		"a longer blob":    {table[:12], blob},
		"no blob":          {table},
	} {
		if rows, ok := parseBatch(frames, false); ok {
			t.Errorf("%s: %v", what, rows)
		}
	}
}

// The digest was made with Python's hashlib, by the words of BSN-G-14.
func TestAKeyIsAnIdentity(t *testing.T) {
	id := keyedIdentity("echo", []byte("order 4711"))
	if hex.EncodeToString(id[:]) != "48238c4647b7f2a3ee0397382e83f197619208ec8a096f87" {
		t.Errorf("%x", id)
	}
}

func FuzzNoInputEndsAClientOrAWorker(f *testing.F) {
	for _, frames := range examples(f) {
		f.Add(frames[0], frames[len(frames)-1], []byte("x"))
	}
	f.Fuzz(func(t *testing.T, head, first, second []byte) {
		frames := [][]byte{head, first, second}
		client := newStage(t, 1)
		client.connected(0, client.now)
		client.begin(&call{service: "echo", frames: [][]byte{{1}}, ended: make(chan []*call, 1)}, client.now)
		client.receive(0, frames, client.now)
		client.handleTimer(client.now)
		client.step(client.now)
		worker := newWorkerSession(1, "echo", 1, [20]byte{1}, nil)
		worker.connected(0, client.now)
		worker.receive(0, frames, client.now)
		worker.handleTimer(client.now)
		worker.step(client.now)
	})
}
