const nodes = ["http://127.0.0.1:8081", "http://127.0.0.1:8082"];
const headers = { "Content-Type": "application/json", "Idempotency-Key": "order-4712" };
for (let attempt = 0; ; attempt++) {
  const order = { method: "POST", headers, body: JSON.stringify({ item: "lamp" }) };
  const answer = await fetch(`${nodes[attempt % 2]}/call/book`, order).catch(() => null);
  if (answer && answer.status < 502) { console.log(await answer.text()); break; }
  if (attempt > 240) throw new Error("no node answers");
  if (attempt % 2) await new Promise((wake) => setTimeout(wake, 500));
}
