import java.net.URI;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;

class Order {
    public static void main(String[] arguments) throws Exception {
        String[] nodes = {"http://127.0.0.1:8081", "http://127.0.0.1:8082"};
        for (int attempt = 0; attempt < 240; attempt++, Thread.sleep(250)) {
            try {
                var order = HttpRequest.newBuilder(URI.create(nodes[attempt % 2] + "/call/book"))
                    .header("Content-Type", "application/json").header("Idempotency-Key", "order-4714")
                    .POST(BodyPublishers.ofString("{\"item\": \"lamp\"}")).build();
                var answer = HttpClient.newHttpClient().send(order, HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() < 502) { System.out.println(answer.body()); return; }
            } catch (java.io.IOException error) { System.err.println(error); }
        }
        System.exit(1);
    }
}
