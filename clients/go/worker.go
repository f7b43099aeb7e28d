package bstar

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Request is what a handler gets.
type Request struct {
	Service string
	// Frames is the body, one frame or more.
	Frames [][]byte
	// Identity is the same in each delivery of this request.
	Identity [24]byte
	// IsRedelivered: another worker may have begun it.
	IsRedelivered bool
	// Attempt of a durable request, 1 for others.
	Attempt int

	deadline time.Time
}

// Body is the one frame of the body; nil if there are several.
func (r *Request) Body() []byte {
	if len(r.Frames) != 1 {
		return nil
	}
	return r.Frames[0]
}

// Handler answers a request. Its context ends at the caller's deadline, and when the caller gives the request up. An
// error goes to the caller as its text; a *Declined and a *Retry as what they are.
type Handler func(ctx context.Context, request *Request) ([]byte, error)

// release is what the node shows of this library in its listing of workers.
const release = "go-0.1"

// A worker that cannot connect says so at once, and then so often.
const reminder = time.Minute

// Worker offers one service at both nodes of a pair.
type Worker struct {
	options  *options
	handler  Handler
	session  *workerSession
	links    links
	stopping chan struct{}
	stopped  chan struct{}
	once     sync.Once
	warnAt   []time.Time // of each node without a connection
	// Ends the contexts of handlers when a drain has taken too long.
	handlers context.Context
	giveUp   context.CancelFunc
}

// NewWorker connects to the nodes, the primary first, and begins to serve.
func NewWorker(endpoints []string, service string, handler Handler, given ...Option) (*Worker, error) {
	o, err := settings(endpoints, given)
	if err != nil {
		return nil, err
	}
	if len(service) < 1 || len(service) > serviceBytesMax || handler == nil {
		return nil, fmt.Errorf("a worker needs the name of a service, of 1 to %d bytes, and a handler", serviceBytesMax)
	}
	var name [20]byte
	if _, err := rand.Read(name[:]); err != nil {
		return nil, err
	}
	name[0] |= 1 // a routing id does not begin with zero
	host, _ := os.Hostname()
	host = host[:min(len(host), 64)]
	process := binary.BigEndian.AppendUint32(nil, uint32(os.Getpid()))
	process = append(append(append(process, byte(len(host))), host...), release...)
	w := &Worker{
		options: o, handler: handler, session: newWorkerSession(len(endpoints), service, o.credit, name, process),
		links: links{
			endpoints: endpoints, keys: o.security, pauseMin: 100 * time.Millisecond, pauseMax: 5 * time.Second,
		},
		stopping: make(chan struct{}), stopped: make(chan struct{}), warnAt: make([]time.Time, len(endpoints)),
	}
	w.handlers, w.giveUp = context.WithCancel(context.Background())
	w.links.start()
	go w.run()
	return w, nil
}

// Run serves until the context ends, and then closes the worker.
func (w *Worker) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-w.stopped:
	}
	return w.Close()
}

// Close lets handlers finish, for the drain timeout at most, answers, gives back what was not begun, and leaves both
// nodes. Twice is fine.
func (w *Worker) Close() error {
	w.once.Do(func() { close(w.stopping) })
	<-w.stopped
	return nil
}

func (w *Worker) run() {
	defer close(w.stopped)
	defer w.giveUp()
	s := w.session
	stopping := w.stopping
	var drainUntil time.Time
	var events []event
	for {
		until := earlier(s.nextDeadline(time.Now()), drainUntil)
		events = w.links.take(until, stopping, events)
		now := time.Now()
		for _, e := range events {
			w.handle(e, now)
		}
		s.handleTimer(now)
		select {
		case <-stopping:
			stopping, drainUntil = nil, now.Add(w.options.drainTimeout)
			s.stop(now)
		default:
		}
		s.step(now)
		isLate := !drainUntil.IsZero() && !now.Before(drainUntil)
		if isLate {
			s.abandon(now)
		}
		w.carryOut()
		if s.isDone() || isLate {
			w.links.stop()
			return
		}
	}
}

func (w *Worker) handle(e event, now time.Time) {
	s := w.session
	switch {
	case e.do != nil:
		e.do(now)
	case w.links.isStale(e):
	case e.connection == nil:
		if !now.Before(w.warnAt[e.node]) {
			w.warnAt[e.node] = now.Add(reminder)
			w.options.log.Warn("bstar worker: cannot connect", "service", s.service, "error", e.err)
		}
	case e.err != nil:
		s.disconnected(e.node)
	case e.message == nil:
		s.connected(e.node, now)
	default:
		s.receive(e.node, e.message, now)
	}
}

func (w *Worker) carryOut() {
	s := w.session
	for _, each := range s.news {
		w.options.log.Info("bstar worker: "+each.text, "service", s.service, "node", w.links.endpoints[each.node])
	}
	for _, each := range s.keepalives {
		if c := w.links.current[each.node]; c != nil {
			c.isProven.Store(true)
			go w.keepAlive(each, c)
		}
	}
	for _, each := range s.sends {
		w.links.send(each.node, each.frames)
	}
	for _, node := range s.hangUps {
		w.links.hangUp(node)
	}
	for _, t := range s.starts {
		var ctx context.Context
		if deadline := t.request.deadline; deadline.IsZero() {
			ctx, t.cancel = context.WithCancel(w.handlers)
		} else {
			ctx, t.cancel = context.WithDeadline(w.handlers, deadline)
		}
		if t.isCanceled { // it came together with its CANCEL
			t.cancel()
		}
		go w.execute(ctx, t)
	}
	clear(s.sends)
	clear(s.starts)
	s.news, s.keepalives, s.sends, s.hangUps, s.starts = s.news[:0], s.keepalives[:0], s.sends[:0], s.hangUps[:0], s.starts[:0]
}

// keepAlive is the second connection to a node: only PING goes over it, from a goroutine that no handler holds up
// (BSN-W-13). It ends with the first connection.
func (w *Worker) keepAlive(k keepalive, first *connection) {
	ctx, end := context.WithCancel(w.handlers)
	defer end()
	c, err := dial(ctx, w.links.endpoints[k.node], w.links.keys.of(k.node), k.routingID[:])
	if err != nil {
		w.options.log.Info("bstar worker: no keepalive", "service", w.session.service, "error", err)
		return
	}
	defer c.close()
	go func() {
		for _, err := c.receive(); err == nil; _, err = c.receive() {
		}
		c.close()
	}()
	pings := time.NewTicker(k.timeToLive / 3)
	defer pings.Stop()
	for {
		c.ping(k.timeToLive)
		select {
		case <-pings.C:
		case <-first.closed:
			return
		case <-c.closed:
			return
		}
	}
}

// --- handlers ------------------------------------------------------------------------------------------------------

func (w *Worker) execute(ctx context.Context, t *task) {
	defer t.cancel()
	body, err := w.call(ctx, t)
	e := event{node: -1, do: func(now time.Time) { w.session.finish(t, answerOf(t, body, err), now) }}
	select {
	case w.links.events <- e:
	case <-w.stopped:
	}
}

var errExpired = errors.New("its time ended before a worker could begin it")

// call runs the handler. A panic is its error.
func (w *Worker) call(ctx context.Context, t *task) (body []byte, err error) {
	defer func() {
		if caught := recover(); caught != nil {
			w.options.log.Error("bstar worker: panic", "service", w.session.service, "panic", caught, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", caught)
		}
	}()
	if !t.request.deadline.IsZero() && !time.Now().Before(t.request.deadline) {
		return nil, errExpired
	}
	if cause := ctx.Err(); cause == context.Canceled {
		return nil, cause
	}
	body, err = w.handler(ctx, t.request)
	if err != nil {
		_ = err.Error() // one that panics does so here, and not in the worker's loop
	}
	return body, err
}

func answerOf(t *task, body []byte, err error) answer {
	var declined *Declined
	var retry *Retry
	switch {
	case err == nil && len(body) > messageBytesMax-headerBytesMin:
		return answer{textBody("the reply has more bytes than a message may have"), codeHandlerFailed}
	case err == nil:
		return answer{body: [][]byte{body}}
	case err == errExpired && t.request.IsRedelivered:
		return answer{textBody(err.Error()), codeWorkerLost}
	case err == errExpired:
		return answer{textBody(err.Error()), codeExpired}
	case t.isCanceled && errors.Is(err, context.Canceled):
		return answer{textBody("its caller gave it up"), codeCancelled}
	case errors.As(err, &declined) && declined != nil && declinedForm.MatchString(declined.Error()) && (declined.Data == nil || isJSON(declined.Data)):
		frames := textBody(declined.Error())
		if declined.Data != nil {
			frames = append(frames, declined.Data)
		}
		return answer{frames, codeHandlerFailed}
	case errors.As(err, &retry) && retry != nil:
		after := uint32(math.MaxUint32)
		if retry.After > 0 {
			after = toMs(retry.After)
		}
		return answer{append(textBody(retry.Text), binary.BigEndian.AppendUint32(nil, after)), codeRetry}
	}
	text := err.Error()
	if strings.HasPrefix(text, "Declined ") {
		text = "error: " + text // that form says more than this error does
	}
	return answer{textBody(text), codeHandlerFailed}
}

func textBody(text string) [][]byte { return [][]byte{cut(strings.ToValidUTF8(text, "\uFFFD"))} }
