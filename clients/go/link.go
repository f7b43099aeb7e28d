package bstar

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// event is what a loop takes: of a node's link, or (with node -1) of callers and handlers.
type event struct {
	node       int
	connection *connection // nil: an attempt to connect failed
	message    [][]byte    // nil: the connection is new, or broken if err is set
	err        error
	do         func(now time.Time)
}

// links keep one connection to each node. After one broke, or an attempt failed, the next comes after a pause, which
// doubles until a connection is proven.
type links struct {
	endpoints          []string
	keys               *Security
	pauseMin, pauseMax time.Duration
	events             chan event
	current            []*connection // the loop's own, as is the timer
	timer              *time.Timer
	end                context.CancelFunc
	running            sync.WaitGroup
}

// eventsMax bounds what waits for the loop; readers and callers wait beyond it.
const eventsMax = 4096

func (l *links) start() {
	ctx, end := context.WithCancel(context.Background())
	l.end, l.events = end, make(chan event, eventsMax)
	l.current, l.timer = make([]*connection, len(l.endpoints)), time.NewTimer(0)
	for node := range l.endpoints {
		l.running.Add(1)
		go func() {
			defer l.running.Done()
			l.keep(ctx, node)
		}()
	}
}

func (l *links) keep(ctx context.Context, node int) {
	pause := l.pauseMin
	for ctx.Err() == nil {
		c, err := dial(ctx, l.endpoints[node], l.keys.of(node), nil)
		isHeard := l.put(ctx, event{node: node, connection: c, err: err})
		stop := func() bool { return true }
		if c != nil {
			stop = context.AfterFunc(ctx, c.close) // it may wait for a message
		}
		for isHeard && err == nil {
			var message [][]byte
			message, err = c.receive()
			isHeard = l.put(ctx, event{node: node, connection: c, message: message, err: err})
		}
		stop()
		if c != nil {
			c.close()
			if c.isProven.Load() {
				pause = l.pauseMin
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, l.pauseMax)
	}
}

func (l *links) put(ctx context.Context, e event) bool {
	select {
	case l.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// take waits for an event, the deadline or closing, and returns what else is there: it is handled together.
func (l *links) take(until time.Time, closing <-chan struct{}, into []event) []event {
	clear(into)
	into = into[:0]
	l.timer.Reset(time.Until(until))
	select {
	case e := <-l.events:
		into = append(into, e)
	case <-l.timer.C:
	case <-closing:
	}
	// Who is ready to run may have something for the same message.
	runtime.Gosched()
	for len(into) < eventsMax {
		select {
		case e := <-l.events:
			into = append(into, e)
			continue
		default:
		}
		break
	}
	return into
}

// isStale notes a link's event. It is true for one of a connection that the loop gave up.
func (l *links) isStale(e event) bool {
	switch {
	case e.connection == nil: // an attempt failed
		return false
	case e.message == nil && e.err == nil:
		l.current[e.node] = e.connection
		return false
	case l.current[e.node] != e.connection:
		return true
	case e.err != nil:
		l.current[e.node] = nil
	}
	return false
}

func (l *links) hangUp(node int) {
	if c := l.current[node]; c != nil {
		c.close()
		l.current[node] = nil
	}
}

func (l *links) send(node int, message [][]byte) {
	if c := l.current[node]; c != nil {
		c.send(message)
	}
}

// stop sends what is queued, within the linger time, and ends all links.
func (l *links) stop() {
	until := time.Now().Add(2 * lingerTimeout)
	for _, c := range l.current {
		if c != nil {
			c.finish()
		}
	}
	isOpen := func(c *connection) bool { return c != nil }
	for slices.ContainsFunc(l.current, isOpen) && time.Now().Before(until) {
		for _, e := range l.take(until, nil, nil) {
			if e.err != nil && e.connection != nil && l.current[e.node] == e.connection {
				l.current[e.node] = nil
			}
		}
	}
	l.end()
	l.running.Wait()
}
