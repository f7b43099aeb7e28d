package bstar

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// stage is a client's machine without sockets, in virtual time.
type stage struct {
	*session
	t   testing.TB
	now time.Time
}

var all = byte(canBatches | canOnce | canCancels)

func newStage(t testing.TB, nodes int) *stage {
	now := time.Unix(1_000_000, 0)
	endpoints := []string{"tcp://a:1", "tcp://b:1"}[:nodes]
	return &stage{newSession(endpoints, [16]byte{15: 9}, 1000, now), t, now}
}

// ask begins a request; options as of a caller.
func (s *stage) ask(body string, options ...CallOption) *call {
	o, err := callOptionsOf(options)
	if err != nil {
		s.t.Fatal(err)
	}
	made := &call{service: "echo", frames: [][]byte{[]byte(body)}, flags: o.flags, deadline: s.now.Add(30 * time.Second)}
	if o.key != nil {
		made.isKeyed, made.identity = true, keyedIdentity("echo", o.key)
	}
	made.ended = make(chan []*call, 1)
	s.begin(made, s.now)
	return made
}

// tell: a node sends a message.
func (s *stage) tell(node int, h header, body ...[]byte) {
	s.receive(node, append([][]byte{h.encode()}, body...), s.now)
}

func statusFrame(state, can byte, retryMs uint32) []byte {
	frame := make([]byte, 19)
	frame[0], frame[12], frame[16], frame[18] = state, 2, 4, can // heartbeat 512 ms, failover timeout 1024 ms
	frame[6], frame[7], frame[8], frame[9] = byte(retryMs>>24), byte(retryMs>>16), byte(retryMs>>8), byte(retryMs)
	return frame
}

func (s *stage) pong(node int, state byte, epoch uint64, retryMs uint32) {
	s.tell(node, header{command: cmdPong, epoch: epoch, value: retryMs}, statusFrame(state, all, retryMs))
}

func (s *stage) notActive(node int, c *call, flags byte, retryMs uint32) {
	h := header{command: cmdNotActive, flags: flags, identity: c.identity, value: retryMs}
	s.tell(node, h, statusFrame(4, all, retryMs))
}

// sent returns what the machine has to send now, as "node COMMAND numbers", without PINGs.
func (s *stage) sent() (lines []string) {
	s.step(s.now)
	for _, each := range s.sends {
		h, ok := parseHeader(each.frames[0])
		if !ok {
			s.t.Fatalf("unreadable: %x", each.frames[0])
		}
		switch h.command {
		case cmdPing:
		case cmdRequests:
			rows, ok := parseBatch(each.frames[1:], true)
			if !ok {
				s.t.Fatal("an unreadable batch")
			}
			line := fmt.Sprintf("%d REQUESTS", each.node)
			for _, row := range rows {
				line += fmt.Sprintf(" %d", row.number)
			}
			lines = append(lines, line)
		case cmdCancel:
			lines = append(lines, fmt.Sprintf("%d CANCEL %d", each.node, h.identity.number()))
		default:
			line := fmt.Sprintf("%d REQUEST %s", each.node, each.frames[1])
			if h.flags&flagRedelivered != 0 {
				line += " redelivered"
			}
			lines = append(lines, line)
		}
	}
	s.sends = nil
	return lines
}

func (s *stage) expect(lines ...string) {
	s.t.Helper()
	if got := s.sent(); fmt.Sprint(got) != fmt.Sprint(lines) {
		s.t.Fatalf("sent %q, not %q", got, lines)
	}
}

func (s *stage) expectEnd(c *call, kind error, mayHaveExecuted bool) {
	s.t.Helper()
	if c.state != callEnded || !errors.Is(c.err, kind) || MayHaveExecuted(c.err) != mayHaveExecuted {
		s.t.Fatalf("state %d, %v, may have executed: %v", c.state, c.err, MayHaveExecuted(c.err))
	}
}

func (s *stage) pass(d time.Duration) {
	for end := s.now.Add(d); ; {
		next := s.nextDeadline()
		if next.After(end) {
			s.now = end
			return
		}
		if next.After(s.now) {
			s.now = next
		}
		s.handleTimer(s.now)
		s.step(s.now)
	}
}

// following is a client that follows node 0.
func following(t *testing.T) *stage {
	s := newStage(t, 2)
	s.connected(0, s.now)
	s.connected(1, s.now)
	s.pong(0, stateActive, 3, 0)
	s.pong(1, 4, 2, neverMs)
	s.expect()
	return s
}

func (s *stage) final(node int, c *call, body string) {
	s.tell(node, header{command: cmdFinal, identity: c.identity, epoch: 3}, []byte(body))
}

func TestItFollowsTheActiveNodeWithTheHighestEpoch(t *testing.T) {
	s := following(t)
	s.ask("x")
	s.expect("0 REQUEST x")
	s.pong(1, stateActive, 4, 0)
	s.ask("y")
	s.expect("1 REQUEST y")
}

func TestWhatIsReadyTogetherTravelsTogether(t *testing.T) {
	s := following(t)
	first, second := s.ask("x"), s.ask("yy")
	s.ask("first", Urgent())
	s.expect("0 REQUEST first", "0 REQUESTS 1 2")
	table, blob := encodeBatch([]row{{number: 2, body: []byte("YY")}, {number: 1, body: []byte("X")}}, false)
	s.tell(0, header{command: cmdFinals, identity: identityOf(s.client, 0)}, table, blob)
	if string(first.reply[0])+string(second.reply[0]) != "XYY" {
		t.Fatal(first.reply, second.reply)
	}
}

func TestOneRequestVotesAndTheOthersFollowWhenItIsServed(t *testing.T) {
	s := newStage(t, 2)
	s.connected(0, s.now)
	s.connected(1, s.now)
	vote := s.ask("x")
	s.ask("y")
	s.expect() // no status yet
	s.pong(0, 4, 2, 0)
	s.pong(1, 4, 2, 0)
	s.expect("0 REQUEST x")
	s.notActive(0, vote, 0, 300)
	s.expect("1 REQUEST x")
	s.pong(1, stateActive, 4, 0)
	s.expect("1 REQUEST y")
}

func TestTheBackupGetsNoVoteWhileThePrimaryMayCome(t *testing.T) {
	s := newStage(t, 2)
	s.connected(1, s.now)
	s.pong(1, 4, 2, 0)
	s.ask("x")
	s.expect()
	s.disconnected(0, "connection refused")
	s.expect("1 REQUEST x")
}

func TestANewClientHearsBothNodesBeforeItVotes(t *testing.T) {
	s := newStage(t, 2)
	s.ask("a")
	s.connected(0, s.now)
	s.pong(0, 4, 2, 0)
	s.expect()
	s.connected(1, s.now)
	s.pong(1, stateActive, 3, 0)
	s.expect("1 REQUEST a")
}

func TestAVoteIsNotRepeatedBeforeItCanSucceed(t *testing.T) {
	s := newStage(t, 1)
	s.connected(0, s.now)
	s.pong(0, 4, 2, 0)
	vote := s.ask("x")
	s.expect("0 REQUEST x")
	s.notActive(0, vote, 0, 700)
	s.pass(699 * time.Millisecond)
	s.expect()
	s.pong(0, 4, 2, 1)
	s.pass(2 * time.Millisecond)
	s.expect("0 REQUEST x")
}

func TestANodeThatSaysNowAndRefusesGetsVotesEverLessOften(t *testing.T) {
	s := newStage(t, 1)
	s.connected(0, s.now)
	s.pong(0, 4, 2, 0)
	vote, votes := s.ask("x"), 0
	for range 200 {
		if len(s.sent()) > 0 {
			votes++
			s.notActive(0, vote, 0, 0)
		}
		s.pass(5 * time.Millisecond)
		s.pong(0, 4, 2, 0)
	}
	if votes < 5 || votes > 10 {
		t.Fatal(votes, "votes in a second")
	}
}

func TestANodeThatNoRequestCanTurnActiveGetsNone(t *testing.T) {
	s := newStage(t, 1)
	s.connected(0, s.now)
	s.pong(0, 4, 2, neverMs)
	c := s.ask("x")
	for range 29 {
		s.pass(time.Second)
		s.pong(0, 4, 2, neverMs)
		s.expect()
	}
	s.pass(time.Second)
	s.expectEnd(c, ErrNoActiveNode, false)
}

func TestAnIdleClientAsksTheNodesAnewBeforeItWaits(t *testing.T) {
	s := following(t)
	s.disconnected(0, "reset")
	s.expect()
	s.pass(time.Second)
	s.pong(1, 4, 2, neverMs)
	s.pass(time.Second)
	s.pong(1, 4, 2, neverMs)
	s.sends = nil
	s.ask("x")
	s.handleTimer(s.now)
	if len(s.sends) != 1 {
		t.Fatal("no PING")
	}
	s.pong(1, 4, 2, 0)
	s.expect("1 REQUEST x")
}

func TestALostAttemptIsSentAgainWithItsIdentity(t *testing.T) {
	s := following(t)
	c := s.ask("x")
	s.expect("0 REQUEST x")
	s.disconnected(0, "reset")
	s.expect() // the backup hears its peer
	s.pong(1, 4, 2, 0)
	s.expect("1 REQUEST x redelivered")
	s.final(1, c, "X")
	if c.err != nil || string(c.reply[0]) != "X" {
		t.Fatal(c.reply, c.err)
	}
}

func TestOnceIsNotSentAgain(t *testing.T) {
	s := following(t)
	c := s.ask("x", Once())
	s.expect("0 REQUEST x")
	s.disconnected(0, "reset")
	s.expectEnd(c, ErrOutcomeUnknown, true)
	all = canBatches
	defer func() { all = canBatches | canOnce | canCancels }()
	s.pong(1, stateActive, 4, 0)
	c = s.ask("y", Once())
	s.expect()
	s.expectEnd(c, ErrRejected, false)
}

func TestARefusalSaysWhetherAWorkerHadTheRequest(t *testing.T) {
	s := following(t)
	once, other := s.ask("once", Once()), s.ask("x", Key("k"))
	s.expect("0 REQUEST x", "0 REQUEST once")
	s.notActive(0, once, flagDispatched, neverMs)
	s.notActive(0, other, 0, neverMs)
	s.expectEnd(once, ErrOutcomeUnknown, true)
	s.pong(1, stateActive, 4, 0)
	s.expect("1 REQUEST x")
}

func TestABusyNodeIsAskedAfterItsHint(t *testing.T) {
	s := following(t)
	c := s.ask("x")
	s.expect("0 REQUEST x")
	s.tell(0, header{command: cmdBusy, identity: c.identity, value: 200}, []byte("full"))
	s.pass(199 * time.Millisecond)
	s.expect()
	s.sends = nil
	s.pass(time.Millisecond)
	s.expect("0 REQUEST x")
	s.tell(0, header{command: cmdBusy, identity: c.identity, value: 60_000}, []byte("full"))
	for range 30 {
		s.pass(time.Second)
		s.pong(0, stateActive, 3, 0)
	}
	s.expectEnd(c, ErrBusy, false)
}

func TestADeadlineSaysWhetherItMayHaveBeenExecuted(t *testing.T) {
	s := following(t)
	c := s.ask("x")
	s.expect("0 REQUEST x")
	for range 30 {
		s.pass(time.Second)
		s.pong(0, stateActive, 3, 0)
		s.pong(1, 4, 2, neverMs)
	}
	s.expectEnd(c, ErrTimeout, true)
	s.expect("0 CANCEL 1")
}

func TestANodeEndsARequestBeforeItsCallerDoes(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for timeout, want := range map[time.Duration]uint32{time.Second: 950, 30 * time.Second: 29_750} {
		c := call{deadline: now.Add(timeout)}
		if got := c.ttlMs(now); got != want {
			t.Errorf("of %s the node gets %d ms, not %d", timeout, got, want)
		}
	}
}

func TestASilentNodeIsLeft(t *testing.T) {
	s := following(t)
	s.ask("x")
	s.expect("0 REQUEST x")
	s.pass(250 * time.Millisecond)
	s.pong(1, 4, 2, 0)
	s.pass(1100 * time.Millisecond)
	if fmt.Sprint(s.hangUps) != "[0 1]" {
		t.Fatal(s.hangUps)
	}
}

func TestErrorsAreWhatThePageSays(t *testing.T) {
	for code, kind := range map[uint32]error{
		codeHandlerFailed: ErrHandler, codeHandlerTimeout: ErrHandler, codeWorkerLost: ErrOutcomeUnknown,
		codePoison: ErrOutcomeUnknown, codeExpired: ErrTimeout, codeInvalid: ErrRejected, codeNotAllowed: ErrRejected,
		codeRetry: ErrHandler, codeCancelled: ErrOutcomeUnknown, codeWorkerGone: ErrRejected, 77: ErrOutcomeUnknown,
	} {
		s := following(t)
		c := s.ask("x")
		s.expect("0 REQUEST x")
		s.tell(0, header{command: cmdError, identity: c.identity, value: code}, []byte("text"))
		s.expectEnd(c, kind, kind != ErrRejected && kind != ErrTimeout)
	}
}

func TestADeclinedRequestHasItsCode(t *testing.T) {
	s := following(t)
	c := s.ask("x")
	s.expect("0 REQUEST x")
	s.tell(0, header{command: cmdError, identity: c.identity, value: codeHandlerFailed}, []byte("Declined sold: out"), []byte("[7]"))
	var declined *Declined
	if !errors.As(c.err, &declined) || !errors.Is(c.err, ErrHandler) || declined.Code != "sold" || string(declined.Data) != "[7]" {
		t.Fatal(c.err)
	}
}

func TestCallsOfOneKeyAreOneRequest(t *testing.T) {
	s := following(t)
	first, second, other := s.ask("x", Key("k")), s.ask("x", Key("k")), s.ask("another body", Key("k"))
	s.expect("0 REQUEST x")
	s.expectEnd(other, ErrRejected, false)
	s.abandon(first, context.Canceled, s.now)
	s.expectEnd(first, context.Canceled, true)
	s.expect("0 REQUEST x redelivered") // in its place, without CANCEL
	s.final(0, second, "X")
	if string(second.reply[0]) != "X" || s.count != 0 || len(s.timers) != 0 {
		t.Fatal(second.err, s.count, len(s.timers))
	}
}

func TestAKeyedRequestThatExpiresForAnotherCallerIsSentAgain(t *testing.T) {
	s := following(t)
	c := s.ask("x", Key("k"))
	s.expect("0 REQUEST x")
	expired := header{command: cmdError, identity: c.identity, value: codeExpired}
	s.tell(0, expired, []byte("of a caller before"))
	s.pass(100 * time.Millisecond)
	s.expect("0 REQUEST x")
	for range 29 {
		s.pass(time.Second)
		s.pong(0, stateActive, 3, 0)
	}
	s.pass(600 * time.Millisecond)
	s.tell(0, expired, []byte("its own time"))
	s.expectEnd(c, ErrTimeout, false)
}

func TestCallsOfOneKeyHaveTheSameParts(t *testing.T) {
	s := following(t)
	first, second := s.ask("x", Key("k")), s.ask("x", Key("k"))
	s.expect("0 REQUEST x")
	s.tell(0, header{command: cmdPartial, identity: first.identity}, []byte("part"))
	s.tell(0, header{command: cmdFinal, identity: first.identity, value: 1}, []byte("end"))
	for _, c := range []*call{first, second} {
		if len(c.parts) != 1 || string(c.parts[0][0]) != "part" || string(c.reply[0]) != "end" {
			t.Fatal(c.parts, c.reply)
		}
	}
}

func TestPartsBeginAnewWithARedelivery(t *testing.T) {
	s := following(t)
	c := s.ask("x")
	s.expect("0 REQUEST x")
	part := func(index uint32, body string) {
		s.tell(0, header{command: cmdPartial, identity: c.identity, value: index}, []byte(body))
	}
	part(0, "a")
	part(0, "b")
	part(1, "c")
	s.tell(0, header{command: cmdFinal, identity: c.identity, value: 2}, []byte("end"))
	if c.err != nil || len(c.parts) != 2 || string(c.parts[0][0]) != "b" {
		t.Fatal(c.parts, c.err)
	}
	c = s.ask("whole")
	s.expect("0 REQUEST whole")
	part(0, "of a worker that was lost")
	s.final(0, c, "end")
	if c.err != nil || len(c.parts) != 0 {
		t.Fatal(c.parts, c.err)
	}
	c = s.ask("y")
	s.expect("0 REQUEST y")
	part(1, "late")
	s.expectEnd(c, ErrOutcomeUnknown, true)
}

func TestAClosedClientEndsEveryCall(t *testing.T) {
	s := following(t)
	sent := s.ask("x")
	s.expect("0 REQUEST x")
	unsent := s.ask("y")
	s.close()
	s.expectEnd(sent, ErrOutcomeUnknown, true)
	s.expectEnd(unsent, ErrClosed, false)
	if s.count != 0 {
		t.Fatal(s.count)
	}
}
