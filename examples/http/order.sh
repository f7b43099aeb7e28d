for attempt in $(seq 120); do
  for node in http://127.0.0.1:8081 http://127.0.0.1:8082; do
    curl --silent --fail --max-time 10 "$node/call/book" --json '{"item": "lamp"}' \
      -H 'Idempotency-Key: order-4711' && exit 0
  done
  sleep 0.5
done
exit 1
