// Trial is what tests/test_go_client.py runs beside a real pair: an echo worker, and a client that counts what was lost
// or crossed. Endpoints and keys come from BSTAR_ENDPOINTS, BSTAR_KEY and BSTAR_SERVER_KEYS.
//
//	trial worker SERVICE CREDIT PAUSE_MS
//	trial client SERVICE COUNT WINDOW [SIZE]
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bstar"
)

func main() {
	endpoints := strings.Split(os.Getenv("BSTAR_ENDPOINTS"), ",")
	var options []bstar.Option
	if key := os.Getenv("BSTAR_KEY"); key != "" {
		security, err := bstar.LoadSecurity(key, strings.Split(os.Getenv("BSTAR_SERVER_KEYS"), ",")...)
		check(err)
		options = append(options, bstar.WithSecurity(security))
	}
	switch os.Args[1] {
	case "worker":
		work(endpoints, os.Args[2], number(3), time.Duration(number(4))*time.Millisecond, options)
	case "client":
		size := 0
		if len(os.Args) > 5 {
			size = number(5)
		}
		ask(endpoints, os.Args[2], number(3), number(4), size, options)
	default:
		log.Fatalf("no verb %q", os.Args[1])
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func number(place int) int {
	value, err := strconv.Atoi(os.Args[place])
	check(err)
	return value
}

func work(endpoints []string, service string, credit int, pause time.Duration, options []bstar.Option) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	echo := func(_ context.Context, request *bstar.Request) ([]byte, error) {
		if string(request.Body()) == "decline" {
			return nil, &bstar.Declined{Code: "sold", Text: "out", Data: []byte("[7]")}
		}
		time.Sleep(pause)
		return request.Body(), nil
	}
	worker, err := bstar.NewWorker(endpoints, service, echo, append(options, bstar.WithCredit(credit))...)
	check(err)
	check(worker.Run(ctx))
}

// tally is a line of standard output: one for each thousand of answers, and one at the end.
type tally struct {
	Answered int     `json:"answered"`
	Crossed  int     `json:"crossed"`
	Errors   int     `json:"errors"`
	First    string  `json:"first_error"`
	Seconds  float64 `json:"seconds"`
}

func ask(endpoints []string, service string, count, window, size int, options []bstar.Option) {
	client, err := bstar.New(endpoints, append(options, bstar.WithTimeout(2*time.Minute))...)
	check(err)
	defer client.Close()
	padding := strings.Repeat("x", size)
	bodies := iter.Seq[[]byte](func(yield func([]byte) bool) {
		for each := range count {
			if !yield(fmt.Appendf(nil, "%d %s", each, padding)) {
				return
			}
		}
	})
	lines := json.NewEncoder(os.Stdout)
	var t tally
	began := time.Now()
	for outcome := range client.Map(context.Background(), service, bodies, bstar.Window(window), bstar.Unordered()) {
		switch {
		case outcome.Err != nil:
			t.Errors++
			t.First = outcome.Err.Error()
		case string(outcome.Body) != fmt.Sprintf("%d %s", outcome.Index, padding):
			t.Crossed++
		default:
			t.Answered++
		}
		if (t.Answered+t.Errors+t.Crossed)%1000 == 0 {
			t.Seconds = time.Since(began).Seconds()
			check(lines.Encode(t))
		}
	}
	t.Seconds = time.Since(began).Seconds()
	check(lines.Encode(t))
}
