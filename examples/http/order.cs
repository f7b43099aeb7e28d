string[] nodes = ["http://127.0.0.1:8081", "http://127.0.0.1:8082"];
using var client = new HttpClient();
for (int attempt = 0; attempt < 240; attempt++, await Task.Delay(250))
{
    var order = new HttpRequestMessage(HttpMethod.Post, nodes[attempt % 2] + "/call/book");
    order.Content = new StringContent("{\"item\": \"lamp\"}", null, "application/json");
    order.Headers.Add("Idempotency-Key", "order-4715");
    try {
        var answer = await client.SendAsync(order);
        if ((int)answer.StatusCode < 502) { Console.WriteLine(await answer.Content.ReadAsStringAsync()); return 0; }
    } catch (HttpRequestException error) { Console.Error.WriteLine(error.Message); }
}
return 1;
