package bstar

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// bench is a worker's machine at two nodes, without sockets, in virtual time.
type bench struct {
	*workerSession
	t   *testing.T
	now time.Time
}

func newBench(t *testing.T) *bench {
	return &bench{newWorkerSession(2, "echo", 4, [20]byte{1}, nil), t, time.Unix(1_000_000, 0)}
}

func (b *bench) tell(node int, h header, body ...[]byte) {
	b.receive(node, append([][]byte{h.encode()}, body...), b.now)
	b.step(b.now)
}

func (b *bench) register(node int, state byte, epoch uint64) {
	b.connected(node, b.now)
	expiry := binary.BigEndian.AppendUint32(nil, 2000)
	b.tell(node, header{command: cmdWelcome, epoch: epoch, value: 500}, statusFrame(state, all, 0), expiry)
}

// give: a node sends request `number` of client 9.
func (b *bench) give(node int, number, epoch uint64) *task {
	id := identityOf([16]byte{15: 9}, number)
	b.tell(node, header{command: cmdRequest, identity: id, epoch: epoch, value: 3000}, []byte("x"))
	if len(b.starts) == 0 {
		return nil
	}
	return b.starts[len(b.starts)-1]
}

// expect says what the worker sends, as "node command value epoch".
func (b *bench) expect(lines ...string) {
	b.t.Helper()
	b.step(b.now)
	names := map[command]string{
		cmdReady: "READY", cmdHeartbeat: "HEARTBEAT", cmdFinal: "FINAL", cmdFinals: "FINALS", cmdError: "ERROR",
		cmdStaleEpoch: "STALE_EPOCH", cmdDisconnect: "DISCONNECT",
	}
	var got []string
	for _, each := range b.sends {
		h, _ := parseHeader(each.frames[0])
		line := fmt.Sprintf("%d %s %d %d", each.node, names[h.command], h.value, h.epoch)
		if h.flags&flagUnbegun != 0 {
			line += " unbegun"
		}
		got = append(got, line)
	}
	b.sends = nil
	if fmt.Sprint(got) != fmt.Sprint(lines) {
		b.t.Fatalf("sent %q, not %q", got, lines)
	}
}

func registered(t *testing.T) *bench {
	b := newBench(t)
	b.register(0, stateActive, 3)
	b.register(1, 4, 2)
	b.expect("0 READY 4 0", "0 HEARTBEAT 0 3", "1 READY 4 3")
	return b
}

var done = answer{body: [][]byte{[]byte("X")}}

func TestAWorkerRegistersAtBothNodesAndObeysTheActiveOne(t *testing.T) {
	b := registered(t)
	if b.obeyed != 3 || len(b.keepalives) != 2 || b.keepalives[0].timeToLive != 1500*time.Millisecond {
		t.Fatal(b.obeyed, b.keepalives)
	}
	one, other := b.keepalives[0].routingID, b.keepalives[1].routingID
	if !bytes.Equal(one[:20], other[:20]) || one == other {
		t.Fatal("one name for the worker, one routing id for each keepalive")
	}
}

func TestARequestOfALowerEpochIsNotBegun(t *testing.T) {
	b := registered(t)
	if b.give(1, 1, 2) != nil {
		t.Fatal("begun")
	}
	b.expect("1 STALE_EPOCH 0 3")
	if b.give(1, 2, 4) == nil {
		t.Fatal("not begun")
	}
	b.expect("0 HEARTBEAT 0 4", "1 HEARTBEAT 0 4")
}

func TestAnEpochFarBelowIsObeyedAfterAnExpiry(t *testing.T) {
	b := registered(t)
	b.tell(1, header{command: cmdHeartbeat, value: stateActive, epoch: 3 + 2*epochLeap})
	b.tell(0, header{command: cmdHeartbeat, value: stateActive, epoch: 3})
	if b.obeyed != 3+2*epochLeap {
		t.Fatal(b.obeyed)
	}
	b.now = b.now.Add(2001 * time.Millisecond)
	b.tell(0, header{command: cmdHeartbeat, value: stateActive, epoch: 3})
	if b.obeyed != 3 {
		t.Fatal(b.obeyed)
	}
}

func TestItHeartbeatsAndHangsUpOnSilence(t *testing.T) {
	b := registered(t)
	b.now = b.now.Add(500 * time.Millisecond)
	b.handleTimer(b.now)
	b.expect("0 HEARTBEAT 0 3", "1 HEARTBEAT 0 3")
	b.tell(1, header{command: cmdHeartbeat, value: 4, epoch: 2})
	b.nextDeadline(b.now)
	b.now = b.now.Add(1500 * time.Millisecond)
	b.expectedAt = b.now
	b.handleTimer(b.now)
	if fmt.Sprint(b.hangUps) != "[0]" {
		t.Fatal(b.hangUps)
	}
}

func TestAReplyGoesToTheConnectionOfItsRequestOnly(t *testing.T) {
	b := registered(t)
	first, second := b.give(0, 1, 3), b.give(0, 2, 3)
	b.finish(first, done, b.now)
	b.expect("0 FINAL 0 3")
	b.disconnected(0)
	b.register(0, 4, 3)
	b.expect("0 READY 4 3")
	b.give(1, 3, 4)
	b.expect("0 HEARTBEAT 1 4", "1 HEARTBEAT 1 4") // it still executes one of another connection
	b.finish(second, done, b.now)
	b.expect("1 HEARTBEAT 0 4")
}

func TestRepliesThatAreReadyTogetherTravelTogether(t *testing.T) {
	b := registered(t)
	table, blob := encodeBatch([]row{{number: 1, ttlMs: 50, body: []byte("a")}, {number: 2, body: []byte("b")}}, true)
	b.tell(0, header{command: cmdRequests, epoch: 3, value: 20}, table, blob)
	if len(b.starts) != 2 || b.starts[0].request.deadline != b.now.Add(30*time.Millisecond) || !b.starts[1].request.deadline.IsZero() {
		t.Fatal(b.starts)
	}
	for _, each := range b.starts {
		b.finish(each, done, b.now)
	}
	b.expect("0 FINALS 0 3")
}

func TestAWorkerThatStopsFinishesWhatItHasBegun(t *testing.T) {
	b := registered(t)
	begun := b.give(0, 1, 3)
	b.starts = nil
	b.stop(b.now)
	b.expect("1 DISCONNECT 0 3 unbegun")
	if b.give(0, 2, 3) != nil || b.isDone() {
		t.Fatal("it begins what comes while it stops, or does not wait")
	}
	b.finish(begun, done, b.now)
	b.expect("0 FINAL 0 3", "0 DISCONNECT 0 3 unbegun")
	if !b.isDone() {
		t.Fatal("not done")
	}
}

func TestADrainThatTakesTooLongSaysThatWorkWasBegun(t *testing.T) {
	b := registered(t)
	b.give(0, 1, 3)
	b.stop(b.now)
	b.abandon(b.now)
	b.expect("1 DISCONNECT 0 3 unbegun", "0 DISCONNECT 0 3")
}

func TestACancelledRequestEndsItsContext(t *testing.T) {
	b := registered(t)
	begun := b.give(0, 1, 3)
	ctx, cancel := context.WithCancel(context.Background())
	begun.cancel = cancel
	b.tell(0, header{command: cmdCancel, identity: identity(begun.request.Identity)})
	if ctx.Err() == nil || answerOf(begun, nil, ctx.Err()).code != codeCancelled {
		t.Fatal(ctx.Err())
	}
}

// staffed is a worker without sockets around a machine.
func staffed(b *bench, handler Handler) *Worker {
	w := &Worker{
		options: &options{log: slog.New(slog.DiscardHandler)}, session: b.workerSession, handler: handler,
		links: links{events: make(chan event, 1), endpoints: []string{"a", "b"}, current: make([]*connection, 2)},
	}
	w.handlers, w.giveUp = context.WithCancel(b.t.Context())
	return w
}

func TestARequestThatIsCancelledAsItComesIsNotBegun(t *testing.T) {
	b := registered(t)
	id := identityOf([16]byte{15: 9}, 1)
	b.tell(0, header{command: cmdRequest, identity: id, epoch: 3}, []byte("x"))
	b.tell(0, header{command: cmdCancel, identity: id})
	w := staffed(b, func(context.Context, *Request) ([]byte, error) {
		t.Error("begun")
		return nil, nil
	})
	w.carryOut()
	(<-w.links.events).do(b.now)
	b.expect(fmt.Sprintf("0 ERROR %d 3", codeCancelled))
}

func TestADismissalEndsTheConnectionThatBroughtItAndNoOther(t *testing.T) {
	b := registered(t)
	w, first, second := staffed(b, nil), hearing(nil), hearing(nil)
	w.links.current[0] = first
	dismissal := header{command: cmdDisconnect, value: 1}
	w.handle(event{node: 0, connection: first, message: [][]byte{dismissal.encode()}}, b.now)
	w.handle(event{node: 0, connection: first, err: errors.New("end of file")}, b.now)
	w.handle(event{node: 0, connection: second}, b.now)
	w.carryOut()
	if w.links.current[0] != second {
		t.Fatal("the next connection was given up, too")
	}
}

func TestAHandlersErrorIsAnAnswer(t *testing.T) {
	fresh, redelivered := &task{request: &Request{}}, &task{request: &Request{IsRedelivered: true}}
	for _, each := range []struct {
		task *task
		err  error
		text string
		code uint32
	}{
		{fresh, errors.New("bad"), "bad", codeHandlerFailed},
		{fresh, fmt.Errorf("price: %w", &Declined{Code: "sold", Text: "out"}), "Declined sold: out", codeHandlerFailed},
		{fresh, &Declined{Code: "no code"}, "error: Declined no code", codeHandlerFailed},
		{fresh, errors.New("Declined sold"), "error: Declined sold", codeHandlerFailed},
		{fresh, &Retry{Text: "later", After: 2 * time.Second}, "later", codeRetry},
		{fresh, errExpired, errExpired.Error(), codeExpired},
		{redelivered, errExpired, errExpired.Error(), codeWorkerLost},
		{fresh, fmt.Errorf("wrapped: %w", (*Declined)(nil)), "wrapped: <nil>", codeHandlerFailed},
		{fresh, fmt.Errorf("wrapped: %w", (*Retry)(nil)), "wrapped: <nil>", codeHandlerFailed},
	} {
		got := answerOf(each.task, nil, each.err)
		if string(got.body[0]) != each.text || got.code != each.code {
			t.Errorf("%v: %q, code %d", each.err, got.body, got.code)
		}
	}
}

func TestAnErrorThatPanicsIsAnAnswerToo(t *testing.T) {
	var none *Declined // as an error it is not nil, and its text panics
	w := &Worker{
		options: &options{log: slog.New(slog.DiscardHandler)}, session: &workerSession{service: "price"},
		handler: func(context.Context, *Request) ([]byte, error) { return nil, none },
	}
	begun := &task{request: &Request{}}
	_, err := w.call(context.Background(), begun)
	if got := answerOf(begun, nil, err); !strings.HasPrefix(string(got.body[0]), "panic: ") {
		t.Fatalf("%q", got.body)
	}
}
