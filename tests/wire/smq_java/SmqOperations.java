import com.aliyun.mns.client.AsyncResult;
import com.aliyun.mns.client.CloudQueue;
import com.aliyun.mns.client.MNSClient;
import com.aliyun.mns.client.TransactionQueue;
import com.aliyun.mns.common.BatchDeleteException;
import com.aliyun.mns.common.BatchSendException;
import com.aliyun.mns.common.ServiceException;
import com.aliyun.mns.common.ServiceHandlingRequiredException;
import com.aliyun.mns.model.AccountAttributes;
import com.aliyun.mns.model.Message;
import com.aliyun.mns.model.MessagePropertyValue;
import com.aliyun.mns.model.MessageSystemPropertyName;
import com.aliyun.mns.model.MessageSystemPropertyValue;
import com.aliyun.mns.model.PagingListResult;
import com.aliyun.mns.model.PropertyType;
import com.aliyun.mns.model.QueueMeta;
import com.aliyun.mns.model.SystemPropertyType;
import com.aliyun.mns.model.TopicMeta;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Every operation of Alibaba's SDK on queues and messages, against the endpoint that is given; the arguments are modes, each with its
 * endpoint: open URL, or keys URL. Prints a line for each story: its mode, its name, and "passed" or what went wrong.
 */
public class SmqOperations {
    interface Story {
        void tell() throws Exception;
    }

    static final int SHORT_S = 1;
    final String mode;
    final String endpoint;
    final MNSClient client;
    int names;

    SmqOperations(String mode, String endpoint) throws Exception {
        this.mode = mode;
        this.endpoint = endpoint;
        this.client = connect("ak", "sk");
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> modes = new ArrayList<>(); // side by side: most of the time is spent waiting
        for (int at = 0; at < arguments.length; at += 2) {
            SmqOperations run = new SmqOperations(arguments[at], arguments[at + 1]);
            modes.add(new Thread(run::all));
        }
        for (Thread each : modes) {
            each.start();
        }
        for (Thread each : modes) {
            each.join();
        }
        System.exit(0); // a transactional queue leaves a thread behind
    }

    void all() {
        story("queues", this::queues);
        story("queues that exist and that do not", this::queuesThatExistAndThatDoNot);
        story("lists of queues", this::listsOfQueues);
        story("a message", this::aMessage);
        story("bodies", this::bodies);
        story("nothing to receive", this::nothingToReceive);
        story("batches", this::batches);
        story("batches that fail in part", this::batchesThatFailInPart);
        story("peeks", this::peeks);
        story("visibility", this::visibility);
        story("delays", this::delays);
        story("priorities", this::priorities);
        story("properties", this::properties);
        story("calls that do not block", this::callsThatDoNotBlock);
        story("transactions", this::transactions);
        story("errors", this::errors);
        story("the account", this::theAccount);
        story("topics", this::topics);
    }

    // ---- queues

    void queues() throws Exception {
        QueueMeta meta = meta("full");
        meta.setVisibilityTimeout(45L);
        meta.setDelaySeconds(7L);
        meta.setMaxMessageSize(2048L);
        meta.setMessageRetentionPeriod(600L);
        meta.setPollingWaitSeconds(3);
        meta.setLoggingEnabled(true);
        CloudQueue queue = client.createQueue(meta);
        same(endpoint + "/queues/" + meta.getQueueName(), queue.getQueueURL());
        QueueMeta told = queue.getAttributes();
        same(meta.getQueueName(), told.getQueueName());
        same(45L, told.getVisibilityTimeout());
        same(7L, told.getDelaySeconds());
        same(2048L, told.getMaxMessageSize());
        same(600L, told.getMessageRetentionPeriod());
        same(3, told.getPollingWaitSeconds());
        same(true, told.isLoggingEnabled());
        same(0L, told.getActiveMessages());
        same(0L, told.getInactiveMessages());
        same(0L, told.getDelayMessages());
        that(Math.abs(told.getCreateTime().getTime() - System.currentTimeMillis()) < 600_000, "created now");
        that(!told.getLastModifyTime().before(told.getCreateTime()), "changed after it was made");

        QueueMeta change = new QueueMeta();
        change.setQueueName(meta.getQueueName()); // the SDK takes it from here
        change.setVisibilityTimeout(90L);
        change.setDelaySeconds(0L);
        change.setPollingWaitSeconds(0);
        queue.setAttributes(change);
        told = queue.getAttributes();
        same(90L, told.getVisibilityTimeout());
        same(0L, told.getDelaySeconds());
        same(0, told.getPollingWaitSeconds());
        same(600L, told.getMessageRetentionPeriod());
        queue.delete();
        same(false, queue.isQueueExist());
    }

    void queuesThatExistAndThatDoNot() throws Exception {
        QueueMeta meta = meta("twice");
        meta.setVisibilityTimeout(30L);
        CloudQueue queue = client.createQueue(meta);
        same(true, queue.isQueueExist());
        same(queue.getQueueURL(), client.createQueue(meta).getQueueURL());
        meta.setVisibilityTimeout(31L);
        same("QueueAlreadyExist", code(() -> client.createQueue(meta)));
        CloudQueue missing = client.getQueueRef(name("missing"));
        same(false, missing.isQueueExist());
        same("QueueNotExist", code(missing::getAttributes));
        same("QueueNotExist", code(missing::popMessage));
        same("QueueNotExist", code(() -> missing.putMessage(new Message("x"))));
    }

    void listsOfQueues() throws Exception {
        String prefix = name("list");
        List<String> made = new ArrayList<>();
        for (int at = 0; at < 5; at++) {
            QueueMeta meta = new QueueMeta();
            meta.setQueueName(prefix + "-" + at);
            meta.setVisibilityTimeout(20L + at);
            made.add(client.createQueue(meta).getQueueURL());
        }
        List<String> found = new ArrayList<>();
        String marker = "";
        int pages = 0;
        do {
            PagingListResult<String> page = client.listQueueURL(prefix, marker, 2);
            found.addAll(page.getResult());
            marker = page.getMarker();
            pages++;
        } while (marker != null && !marker.isEmpty());
        same(made, found);
        same(3, pages);
        List<QueueMeta> metas = client.listQueue(prefix, "", 10).getResult();
        same(5, metas.size());
        same(22L, metas.get(2).getVisibilityTimeout());
        same(made.get(2), metas.get(2).getQueueURL());
        PagingListResult<String> none = client.listQueueURL(name("none"), "", 10);
        that(none == null || none.getResult() == null || none.getResult().isEmpty(), "no queue has this name");
    }

    // ---- messages

    void aMessage() throws Exception {
        CloudQueue queue = queue("plain");
        Message sent = queue.putMessage(new Message("first"));
        that(sent.getMessageId().length() > 8, "has an id");
        that(sent.getReceiptHandle() == null, "no handle without a delay");
        same(1L, queue.getAttributes().getActiveMessages());
        Message got = queue.popMessage();
        same(sent.getMessageId(), got.getMessageId());
        same(sent.getMessageBodyMD5(), got.getMessageBodyMD5());
        same("first", got.getMessageBodyAsString());
        same(1, got.getDequeueCount());
        same(8, got.getPriority());
        that(got.getNextVisibleTime().after(got.getEnqueueTime()), "hidden for a while");
        that(!got.getFirstDequeueTime().before(got.getEnqueueTime()), "received after it was sent");
        same(1L, queue.getAttributes().getInactiveMessages());
        queue.deleteMessage(got.getReceiptHandle());
        same("MessageNotExist", code(() -> queue.deleteMessage(got.getReceiptHandle())));
        same(0L, queue.getAttributes().getInactiveMessages());
    }

    void bodies() throws Exception {
        CloudQueue queue = queue("bodies");
        String hard = "<a b=\"c\">&amp; ]]> grüße 消息\r\n\t </a>";
        byte[] bytes = new byte[256];
        for (int at = 0; at < bytes.length; at++) {
            bytes[at] = (byte) at;
        }
        queue.putMessage(new Message(hard));
        same(hard, popped(queue).getMessageBodyAsString("UTF-8"));
        queue.putMessage(new Message(bytes));
        that(Arrays.equals(bytes, popped(queue).getMessageBodyAsBytes()), "the same bytes");
        Message raw = new Message();
        raw.setMessageBody(hard, Message.MessageBodyType.RAW_STRING);
        queue.putMessage(raw);
        same(hard, popped(queue).getMessageBodyAsRawString());
        Message large = new Message();
        large.setMessageBodyAsRawString("x".repeat(65_536));
        queue.putMessage(large);
        same(65_536, popped(queue).getMessageBodyAsRawString().length());
        large.setMessageBodyAsRawString("x".repeat(65_537));
        same("InvalidArgument", code(() -> queue.putMessage(large)));
    }

    void nothingToReceive() throws Exception {
        CloudQueue queue = queue("empty");
        same(null, queue.popMessage());
        same(null, queue.popMessage(SHORT_S));
        same(null, queue.batchPopMessage(16));
        same(null, queue.batchPopMessage(16, SHORT_S));
        same(null, queue.peekMessage());
        same(null, queue.batchPeekMessage(16));
    }

    void batches() throws Exception {
        CloudQueue queue = queue("batch");
        List<Message> sent = queue.batchPutMessage(messages(16));
        same(16, sent.size());
        for (Message each : sent) {
            that(!each.isErrorMessage() && each.getMessageId() != null, "stored");
        }
        List<Message> got = queue.batchPopMessage(16);
        same(16, got.size());
        for (int at = 0; at < 16; at++) {
            same("m" + at, got.get(at).getMessageBodyAsString());
            same(sent.get(at).getMessageId(), got.get(at).getMessageId());
        }
        queue.batchDeleteMessage(handles(got));
        same(null, queue.batchPopMessage(1, SHORT_S));
        queue.batchPutMessage(messages(2));
        same(2, queue.batchPopMessage(16, 30).size());
        same("InvalidArgument", code(() -> queue.batchPutMessage(messages(17))));
        same("InvalidArgument", code(() -> queue.batchPopMessage(17)));
    }

    void batchesThatFailInPart() throws Exception {
        CloudQueue queue = queue("part");
        List<Message> three = messages(3);
        three.get(1).setMessageGroupId("with blanks");
        try {
            queue.batchPutMessage(three);
            throw new AssertionError("a batch with a bad message passed");
        } catch (BatchSendException refusal) {
            List<Message> told = refusal.getMessages();
            same(3, told.size());
            same(false, told.get(0).isErrorMessage());
            same("InvalidArgument", told.get(1).getErrorMessage().getErrorCode());
            same(false, told.get(2).isErrorMessage());
        }
        List<Message> got = queue.batchPopMessage(16);
        same(2, got.size());
        queue.deleteMessage(got.get(0).getReceiptHandle());
        try {
            queue.batchDeleteMessage(handles(got));
            throw new AssertionError("a batch with a dead handle passed");
        } catch (ServiceHandlingRequiredException wrapped) {
            BatchDeleteException refusal = (BatchDeleteException) wrapped.getCause();
            same(1, refusal.getErrorMessages().size());
            same("MessageNotExist", refusal.getErrorMessages().get(got.get(0).getReceiptHandle()).getErrorCode());
        }
        same(0L, queue.getAttributes().getInactiveMessages());
    }

    void peeks() throws Exception {
        CloudQueue queue = queue("peek");
        queue.batchPutMessage(messages(3));
        Message next = queue.peekMessage();
        same("m0", next.getMessageBodyAsString());
        same(0, next.getDequeueCount());
        that(next.getReceiptHandle() == null, "a peek has no handle");
        same(3, queue.batchPeekMessage(16).size());
        same(3L, queue.getAttributes().getActiveMessages());
    }

    void visibility() throws Exception {
        CloudQueue queue = queue("visibility");
        queue.putMessage(new Message("x"));
        String first = queue.popMessage().getReceiptHandle();
        Message changed = queue.changeMessageVisibility(first, 3600);
        String second = changed.getReceiptHandle();
        that(!first.equals(second), "a new handle");
        long ahead_ms = changed.getNextVisibleTime().getTime() - System.currentTimeMillis();
        that(ahead_ms > 1_800_000 && ahead_ms < 3_660_000, "hidden for an hour, not for " + ahead_ms + " ms");
        same("MessageNotExist", code(() -> queue.changeMessageVisibility(first, 3600)));
        same("MessageNotExist", code(() -> queue.deleteMessage(first)));
        String third = queue.changeMessageVisibilityTimeout(second, SHORT_S);
        that(third != null && !third.equals(second), "a new handle");
        Message again = queue.popMessage(30);
        same(2, again.getDequeueCount());
        queue.deleteMessage(again.getReceiptHandle());
        same("InvalidArgument", code(() -> queue.changeMessageVisibility(again.getReceiptHandle(), 43_201)));
    }

    void delays() throws Exception {
        CloudQueue queue = queue("delays");
        Message later = new Message("later");
        later.setDelaySeconds(3600);
        String handle = queue.putMessage(later).getReceiptHandle();
        that(handle != null, "a delayed message has a handle");
        same(1L, queue.getAttributes().getDelayMessages());
        same(null, queue.popMessage());
        String soon = queue.changeMessageVisibility(handle, 1800).getReceiptHandle();
        same("MessageNotExist", code(() -> queue.deleteMessage(handle)));
        queue.deleteMessage(soon);
        same(0L, queue.getAttributes().getDelayMessages());
        Message short_ = new Message("short");
        short_.setDelaySeconds(SHORT_S);
        queue.putMessage(short_);
        same("short", queue.popMessage(30).getMessageBodyAsString());
    }

    void priorities() throws Exception {
        CloudQueue queue = queue("priorities");
        for (int priority : new int[] {16, 8, 1}) {
            Message message = new Message("p" + priority);
            message.setPriority(priority);
            queue.putMessage(message);
        }
        List<Message> got = queue.batchPopMessage(3);
        same("p1", got.get(0).getMessageBodyAsString());
        same("p8", got.get(1).getMessageBodyAsString());
        same("p16", got.get(2).getMessageBodyAsString());
        same(16, got.get(2).getPriority());
    }

    void properties() throws Exception {
        CloudQueue queue = queue("properties");
        Message message = new Message("x");
        Map<String, MessagePropertyValue> own = new HashMap<>();
        own.put("text", new MessagePropertyValue("a & b"));
        own.put("number", new MessagePropertyValue(PropertyType.NUMBER, "12.5"));
        own.put("flag", new MessagePropertyValue(true));
        own.put("bytes", new MessagePropertyValue(new byte[] {1, 2, 65}));
        message.setUserProperties(own);
        message.putSystemProperty(
                MessageSystemPropertyName.TRACE_PARENT,
                new MessageSystemPropertyValue(SystemPropertyType.STRING, "00-1-2-01"));
        message.setMessageGroupId("g1");
        queue.putMessage(message);
        Message got = queue.popMessage();
        Map<String, MessagePropertyValue> told = got.getUserProperties();
        same(own.keySet(), told.keySet());
        same("a & b", told.get("text").getStringValueByType());
        same(PropertyType.NUMBER, told.get("number").getDataType());
        same("12.5", told.get("number").getStringValueByType());
        same(PropertyType.BOOLEAN, told.get("flag").getDataType());
        same("true", told.get("flag").getStringValueByType());
        that(Arrays.equals(new byte[] {1, 2, 65}, told.get("bytes").getBinaryValue()), "the same bytes");
        same("00-1-2-01", got.getSystemProperty(MessageSystemPropertyName.TRACE_PARENT).getStringValueByType());
        same("g1", got.getMessageGroupId());
    }

    void callsThatDoNotBlock() throws Exception {
        QueueMeta meta = meta("async");
        CloudQueue queue = client.getQueueRef(meta.getQueueName());
        done(queue.asyncCreate(meta, null));
        done(queue.asyncPutMessage(new Message("x"), null));
        same(3, done(queue.asyncBatchPutMessage(messages(3), null)).size());
        same("x", done(queue.asyncPeekMessage(null)).getMessageBodyAsString());
        same(4, done(queue.asyncBatchPeekMessage(16, null)).size());
        Message got = done(queue.asyncPopMessage(null));
        Message changed = done(queue.asyncChangeMessageVisibility(got.getReceiptHandle(), 3600, null));
        done(queue.asyncDeleteMessage(changed.getReceiptHandle(), null));
        done(queue.asyncBatchDeleteMessage(handles(done(queue.asyncBatchPopMessage(16, null))), null));
        AsyncResult<Message> empty = queue.asyncPopMessage(null);
        same(null, empty.getResult());
        same("MessageNotExist", ((ServiceException) empty.getException()).getErrorCode());
        meta.setVisibilityTimeout(77L);
        done(queue.asyncSetAttributes(meta, null));
        same(77L, done(queue.asyncGetAttributes(null)).getVisibilityTimeout());
        done(queue.asyncDelete(null));
        same(false, queue.isQueueExist());
    }

    void transactions() throws Exception {
        List<String> asked = new ArrayList<>();
        TransactionQueue queue = client.createTransQueue(meta("transactions"), message -> {
            asked.add(message.getReceiptHandle());
            return true;
        });
        CloudQueue inner = queue.getInnerQueue();
        QueueMeta told = inner.getAttributes();
        same(172_800L, told.getDelaySeconds());
        same(169_200L, told.getMessageRetentionPeriod());

        Message kept = queue.sendPrepareMessage(new Message("kept"));
        Message dropped = queue.sendPrepareMessage(new Message("dropped"));
        same(2L, inner.getAttributes().getDelayMessages());
        queue.rollbackMessage(dropped);
        queue.commitMessage(kept);
        Message got = inner.popMessage(30);
        same("kept", got.getMessageBodyAsString());
        same(1, got.getDequeueCount());
        inner.deleteMessage(got.getReceiptHandle());
        queue.commitMessage(kept); // a commit that is repeated finds nothing, and that is no error
        same(0L, inner.getAttributes().getDelayMessages());

        queue.sendTransMessage(new Message("done"), message -> true);
        queue.sendTransMessage(new Message("undone"), message -> false);
        got = inner.popMessage(30);
        same("done", got.getMessageBodyAsString());
        inner.deleteMessage(got.getReceiptHandle());
        same(null, inner.popMessage(SHORT_S));
        same(0L, inner.getAttributes().getDelayMessages());
        same(0L, queue.getTransOpLogQueue().getAttributes().getDelayMessages());
        queue.stopCheckThread();
        queue.delete(true);
        same(new ArrayList<String>(), asked);
    }

    // ---- errors

    void errors() throws Exception {
        CloudQueue queue = queue("errors");
        try {
            queue.deleteMessage("no-handle-of-this-server");
            throw new AssertionError("a forged handle deleted");
        } catch (ServiceHandlingRequiredException refusal) {
            same("ReceiptHandleError", refusal.getErrorCode());
            that(!refusal.getRequestId().isEmpty(), "tells the request");
            same(endpoint, refusal.getHostId());
            that(refusal.getMessage().contains("receipt handle"), refusal.getMessage());
        }
        QueueMeta bad = meta("bad");
        bad.setVisibilityTimeout(43_201L);
        same("InvalidArgument", code(() -> client.createQueue(bad)));
        bad.setQueueName("under_score");
        bad.setVisibilityTimeout(30L);
        same("InvalidQueueName", code(() -> client.createQueue(bad)));
        if (mode.equals("keys")) {
            for (String[] wrong : new String[][] {
                {"ak", "other", "SignatureDoesNotMatch"}, {"nobody", "sk", "InvalidAccessKeyId"}}) {
                MNSClient stranger = connect(wrong[0], wrong[1]);
                CloudQueue seen = stranger.getQueueRef("errors");
                same(wrong[2], code(() -> seen.putMessage(new Message("x"))));
                same(wrong[2], code(seen::getAttributes));
                stranger.close();
            }
        }
    }

    void theAccount() throws Exception {
        AccountAttributes told = (AccountAttributes) named("getAccountAttributes").invoke(client);
        that(told.getLoggingBucket() == null || told.getLoggingBucket().isEmpty(), "no bucket for logs");
        AccountAttributes bucket = new AccountAttributes();
        bucket.setLoggingBucket("logs");
        same("InvalidArgument", code(() -> {
            try {
                named("setAccountAttributes").invoke(client, bucket);
            } catch (java.lang.reflect.InvocationTargetException thrown) {
                throw (Exception) thrown.getCause();
            }
        }));
    }

    void topics() throws Exception {
        TopicMeta meta = new TopicMeta();
        meta.setTopicName(name("topic"));
        same("TopicNotExist", code(() -> client.createTopic(meta)));
        same("TopicNotExist", code(() -> client.listTopicURL("", "", 10)));
        same("TopicNotExist", code(() -> client.getTopicRef("topic").getAttribute()));
    }

    // ---- how it is told

    void story(String name, Story story) {
        String came;
        try {
            story.tell();
            came = "passed";
        } catch (Throwable thrown) {
            StringWriter trace = new StringWriter();
            thrown.printStackTrace(new PrintWriter(trace));
            came = trace.toString().replace("\n", " | ");
        }
        System.out.println(mode + "\t" + name + "\t" + came);
    }

    /** The client as this version of the SDK has it made: a builder, or an account before 2.0.0. */
    MNSClient connect(String id, String secret) throws Exception {
        try {
            Class<?> type = Class.forName("com.aliyun.mns.client.MNSClientBuilder");
            Object builder = type.getMethod("create").invoke(null);
            type.getMethod("region", String.class).invoke(builder, "us-east-1"); // it wants one
            type.getMethod("accountEndpoint", String.class).invoke(builder, endpoint);
            type.getMethod("accessKeyId", String.class).invoke(builder, id);
            type.getMethod("accessKeySecret", String.class).invoke(builder, secret);
            return (MNSClient) type.getMethod("build").invoke(builder);
        } catch (ClassNotFoundException older) {
            Class<?> type = Class.forName("com.aliyun.mns.client.CloudAccount");
            Object account = type.getConstructor(String.class, String.class, String.class).newInstance(id, secret, endpoint);
            return (MNSClient) type.getMethod("getMNSClient").invoke(account);
        }
    }

    /** A method of the client whose name has another first letter in older versions. */
    static java.lang.reflect.Method named(String name) {
        for (java.lang.reflect.Method each : MNSClient.class.getMethods()) {
            if (each.getName().equalsIgnoreCase(name)) {
                return each;
            }
        }
        throw new AssertionError("the SDK has no " + name);
    }

    String name(String what) {
        return mode + "-" + what + "-" + ++names;
    }

    QueueMeta meta(String what) {
        QueueMeta meta = new QueueMeta();
        meta.setQueueName(name(what));
        meta.setVisibilityTimeout(43_200L); // no handle dies because the machine is slow
        return meta;
    }

    CloudQueue queue(String what) {
        return client.createQueue(meta(what));
    }

    static List<Message> messages(int count) {
        List<Message> made = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            made.add(new Message("m" + at));
        }
        return made;
    }

    static List<String> handles(List<Message> messages) {
        List<String> handles = new ArrayList<>();
        for (Message each : messages) {
            handles.add(each.getReceiptHandle());
        }
        return handles;
    }

    static Message popped(CloudQueue queue) throws Exception {
        Message got = queue.popMessage();
        queue.deleteMessage(got.getReceiptHandle());
        return got;
    }

    static <T> T done(AsyncResult<T> call) {
        T result = call.getResult();
        if (!call.isSuccess()) {
            throw new AssertionError(call.getException());
        }
        return result;
    }

    static String code(Story story) {
        try {
            story.tell();
        } catch (ServiceException refusal) {
            return refusal.getErrorCode();
        } catch (ServiceHandlingRequiredException refusal) {
            return refusal.getErrorCode();
        } catch (Exception other) {
            throw new AssertionError("not an error of the service: " + other, other);
        }
        return "accepted";
    }

    static void same(Object wanted, Object found) {
        that(wanted == null ? found == null : wanted.equals(found), "wanted " + wanted + ", found " + found);
    }

    static void that(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
