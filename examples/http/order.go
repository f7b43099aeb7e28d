package main

import ("fmt"; "io"; "net/http"; "os"; "strings"; "time")

func main() {
	for attempt := 0; attempt < 240; attempt++ {
		node := []string{"http://127.0.0.1:8081", "http://127.0.0.1:8082"}[attempt%2]
		order, _ := http.NewRequest("POST", node+"/call/book", strings.NewReader(`{"item": "lamp"}`))
		order.Header.Set("Content-Type", "application/json")
		order.Header.Set("Idempotency-Key", "order-4713")
		if answer, err := http.DefaultClient.Do(order); err == nil && answer.StatusCode < 502 {
			io.Copy(os.Stdout, answer.Body)
			return
		}
		time.Sleep(250 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "no node answers")
	os.Exit(1)
}
