package bstar

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// These tests ask the Python workers of a real pair; tests/test_go_client.py starts both.
func pairClient(t *testing.T) *Client {
	endpoints := os.Getenv("BSTAR_ENDPOINTS")
	if endpoints == "" {
		t.Skip("no pair: tests/test_go_client.py names one in BSTAR_ENDPOINTS")
	}
	client, err := New(strings.Split(endpoints, ","))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestPairAnswers(t *testing.T) {
	client := pairClient(t)
	large := bytes.Repeat([]byte("0123456789"), 300_000)
	for _, body := range [][]byte{[]byte("hello"), {}, large} {
		for _, options := range [][]CallOption{nil, {Once()}, {Urgent()}, {Key(string(body[:min(9, len(body))]))}} {
			got, err := client.Request(t.Context(), "go.answer", body, options...)
			if err != nil || !bytes.Equal(got, body) {
				t.Fatal(len(got), err)
			}
		}
	}
}

func TestPairHandlersFailAndDecline(t *testing.T) {
	client := pairClient(t)
	_, err := client.Request(t.Context(), "go.answer", []byte("raise"))
	if !errors.Is(err, ErrHandler) || !strings.Contains(err.Error(), "ValueError") {
		t.Fatal(err)
	}
	_, err = client.Request(t.Context(), "go.answer", []byte("decline"))
	var declined *Declined
	if !errors.As(err, &declined) || declined.Code != "sold" || declined.Text != "out" || string(declined.Data) != "[7]" {
		t.Fatal(err)
	}
}

func TestPairRepliesInParts(t *testing.T) {
	client := pairClient(t)
	reply, err := client.Call(t.Context(), "go.count", [][]byte{[]byte("3")})
	if err != nil || len(reply.Parts) != 3 || string(reply.Parts[2][0]) != "2" || string(reply.Frames[0]) != "done" {
		t.Fatal(reply, err)
	}
}

func TestPairMapsInOrderAndAsTheyCome(t *testing.T) {
	client := pairClient(t)
	bodies := make([][]byte, 3000)
	for number := range bodies {
		bodies[number] = []byte{byte(number), byte(number >> 8)}
	}
	next := 0
	for outcome := range client.Map(t.Context(), "go.answer", slices.Values(bodies), Window(100)) {
		if outcome.Err != nil || outcome.Index != next || !bytes.Equal(outcome.Body, bodies[next]) {
			t.Fatal(next, outcome)
		}
		next++
	}
	seen := map[int]bool{}
	for outcome := range client.Map(t.Context(), "go.answer", slices.Values(bodies), Unordered()) {
		if outcome.Err != nil || !bytes.Equal(outcome.Body, bodies[outcome.Index]) {
			t.Fatal(outcome)
		}
		seen[outcome.Index] = true
	}
	if next != 3000 || len(seen) != 3000 {
		t.Fatal(next, len(seen))
	}
	for range client.Map(t.Context(), "go.answer", slices.Values(bodies)) {
		break
	}
}

func TestPairServiceWithoutAWorkerEndsAtTheDeadline(t *testing.T) {
	client := pairClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := client.Request(ctx, "go.nobody", nil)
	if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestPairACallerThatLeavesCancelsItsRequest(t *testing.T) {
	client := pairClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := client.Request(ctx, "go.wait", nil)
		ended <- err
	}()
	ask := func(what string) {
		if _, err := client.Request(t.Context(), "go.waited", []byte(what)); err != nil {
			t.Error(what, err)
		}
	}
	ask("begun")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || !MayHaveExecuted(err) {
		t.Error(err)
	}
	ask("cancelled") // answered once the handler has seen it
}

func TestPairGoWorkerSeesThatItsCallerLeft(t *testing.T) {
	client := pairClient(t)
	begun, left := make(chan bool), make(chan error, 1)
	worker, err := NewWorker(strings.Split(os.Getenv("BSTAR_ENDPOINTS"), ","), "go.own", func(ctx context.Context, _ *Request) ([]byte, error) {
		close(begun)
		<-ctx.Done()
		left <- ctx.Err()
		return nil, ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := client.Request(ctx, "go.own", nil)
		ended <- err
	}()
	<-begun
	cancel()
	if err := <-left; err != context.Canceled {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := worker.Close(); err != nil {
		t.Error(err)
	}
}

func TestPairAClosedClientSaysSo(t *testing.T) {
	client := pairClient(t)
	client.Close()
	if _, err := client.Request(t.Context(), "go.answer", nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	for outcome := range client.Map(t.Context(), "go.answer", slices.Values([][]byte{{1}, {2}})) {
		if !errors.Is(outcome.Err, ErrClosed) {
			t.Fatal(outcome)
		}
	}
}
