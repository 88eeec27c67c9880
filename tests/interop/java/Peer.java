// Apache BookKeeper's and DistributedLog's Java clients as a peer of tests: one process for many commands.
//   java -cp 'CLASSES:LIB/*' Peer
// Each line of standard input is a JSON object {"id": n, "do": "group.command", ...}; each line of standard output
// answers one: {"id": n, "result": ...} or {"id": n, "error": {"kind": ..., "code": ..., "message": ...}}. Commands run
// concurrently, so answers come in any order. The process ends with its input, by halt: threads of an open client would
// keep the JVM running.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.BKException;
import org.apache.distributedlog.exceptions.DLException;

public final class Peer {
    interface Command {
        Object run(JsonNode arguments) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err); // output of libraries is not an answer
        ObjectMapper json = new ObjectMapper();
        Map<String, Command> commands = new HashMap<>();
        new Ledgers().register(commands);
        new Logs().register(commands);
        new Recovery().register(commands);
        commands.put("ping", a -> "pong");
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = json.readTree(line);
            threads.execute(() -> {
                Map<String, Object> answer = new LinkedHashMap<>();
                answer.put("id", request.get("id").asLong());
                try {
                    Command command = commands.get(request.get("do").asText());
                    if (command == null) {
                        throw new IllegalArgumentException("no such command");
                    }
                    answer.put("result", command.run(request));
                } catch (Throwable error) {
                    answer.put("error", told(error));
                }
                try {
                    String text = json.writeValueAsString(answer);
                    synchronized (out) {
                        out.println(text);
                        out.flush();
                    }
                } catch (Throwable error) {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(3);
                }
            });
        }
        Runtime.getRuntime().halt(0);
    }

    static Map<String, Object> told(Throwable error) {
        Throwable cause = error;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        int code = 0;
        if (cause instanceof BKException failure) {
            code = failure.getCode();
        } else if (cause instanceof DLException failure) {
            code = failure.getCode();
        } else {
            cause.printStackTrace();
        }
        return map("kind", cause.getClass().getSimpleName(), "code", code, "message", String.valueOf(cause.getMessage()));
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            made.put((String) pairs[i], pairs[i + 1]);
        }
        return made;
    }

    static byte[] bytes(JsonNode node) {
        return Base64.getDecoder().decode(node.asText());
    }

    static List<byte[]> list(JsonNode node) {
        List<byte[]> found = new ArrayList<>();
        node.forEach(item -> found.add(bytes(item)));
        return found;
    }

    static String text(byte[] data) {
        return Base64.getEncoder().encodeToString(data);
    }
}
