// The idempotent producers of franz-go and sarama, as __init__.py says.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

const window = 200

type work struct {
	bootstrap         []string
	topic, name       string
	partitions, count int
	pause             time.Duration
	single            bool
	stopped           atomic.Bool
	open              chan struct{}
	unanswered        sync.WaitGroup
	lock              sync.Mutex
	out               *bufio.Writer
}

func (w *work) write(format string, values ...any) {
	w.lock.Lock()
	defer w.lock.Unlock()
	fmt.Fprintln(w.out, strings.ReplaceAll(fmt.Sprintf(format, values...), "\n", " "))
	w.out.Flush()
}

// each calls send for each value, one after the other, and waits until all are answered.
func (w *work) each(send func(partition int32, number int, value []byte)) {
	for number := 0; !w.stopped.Load() && (w.count == 0 || number < w.count); number++ {
		partition := int32(number % w.partitions)
		w.open <- struct{}{}
		w.unanswered.Add(1)
		w.write("sent %d %d", partition, number)
		value := fmt.Sprintf("%s/%d", w.name, number)
		if w.single {
			// franz-go takes no batches below a KiB: one such value fills it.
			value += strings.Repeat(" ", 900-len(value))
		}
		send(partition, number, []byte(value))
		if number%10 == 9 {
			time.Sleep(w.pause)
		}
	}
	w.unanswered.Wait()
}

func (w *work) answered(partition int32, number int, offset int64, err error) {
	if err == nil {
		w.write("acknowledged %d %d %d", partition, number, offset)
	} else {
		w.stopped.Store(true)
		w.write("failed %v", err)
	}
	<-w.open
	w.unanswered.Done()
}

func franz(w *work) error {
	options := []kgo.Opt{
		kgo.SeedBrokers(w.bootstrap...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProduceRequestTimeout(10 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.MetadataMinAge(20 * time.Millisecond),
		kgo.MetadataMaxAge(5 * time.Second),
	}
	if w.single {
		options = append(options, kgo.ProducerBatchMaxBytes(1024), kgo.ProducerLinger(0))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	w.each(func(partition int32, number int, value []byte) {
		record := &kgo.Record{Topic: w.topic, Partition: partition, Value: value}
		client.Produce(context.Background(), record, func(done *kgo.Record, err error) {
			w.answered(partition, number, done.Offset, err)
		})
	})
	return nil
}

func saramaProducer(w *work) error {
	config := sarama.NewConfig()
	config.Version = sarama.V2_6_0_0
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1 // sarama takes no more for an idempotent producer
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max = 1000
	config.Producer.Retry.Backoff = 20 * time.Millisecond
	config.Producer.Timeout = 10 * time.Second
	config.Net.ReadTimeout = 12 * time.Second
	config.Metadata.Retry.Max = 1000
	config.Metadata.Retry.Backoff = 50 * time.Millisecond
	config.Metadata.RefreshFrequency = 5 * time.Second
	if w.single {
		config.Producer.Flush.MaxMessages = 1
	}
	producer, err := sarama.NewAsyncProducer(w.bootstrap, config)
	if err != nil {
		return err
	}
	go func() {
		for done := range producer.Successes() {
			w.answered(done.Partition, done.Metadata.(int), done.Offset, nil)
		}
	}()
	go func() {
		for failed := range producer.Errors() {
			w.answered(failed.Msg.Partition, failed.Msg.Metadata.(int), -1, failed.Err)
		}
	}()
	w.each(func(partition int32, number int, value []byte) {
		producer.Input() <- &sarama.ProducerMessage{
			Topic: w.topic, Partition: partition, Value: sarama.ByteEncoder(value), Metadata: number,
		}
	})
	return nil
}

func main() {
	number := func(text string) int {
		found, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		return found
	}
	args := os.Args[2:]
	w := &work{
		bootstrap: strings.Split(args[0], ","), topic: args[1], partitions: number(args[2]), name: args[3],
		count: number(args[4]), pause: time.Duration(number(args[5])) * time.Millisecond,
		single: args[6] == "single", open: make(chan struct{}, window), out: bufio.NewWriter(os.Stdout),
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		w.stopped.Store(true)
	}()
	run := map[string]func(*work) error{"franz-go": franz, "sarama": saramaProducer}[os.Args[1]]
	if err := run(w); err != nil {
		w.write("failed %v", err)
	}
}
