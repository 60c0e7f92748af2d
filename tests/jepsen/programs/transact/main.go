// Copies records from topic to topic, exactly once: LIBRARY BOOTSTRAP FROM TO PARTITIONS. Goes on until it is killed.
//
// Its name is FROM, as the consumer group, the only member of it and as transactional id. A line for each transaction:
//
//	committed
//	aborted TEXT
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	perTransaction = 20
	session        = 10 * time.Second
)

func ended(err error) {
	if err == nil {
		fmt.Println("committed")
	} else {
		fmt.Printf("aborted %q\n", err)
	}
}

func franz(bootstrap, from, to string, _ int32) error {
	running, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap), kgo.TransactionalID(from), kgo.ConsumerGroup(from), kgo.InstanceID(from),
		kgo.ConsumeTopics(from), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(), kgo.SessionTimeout(session),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for {
		found := running.PollRecords(ctx, perTransaction)
		if err := found.Err(); err != nil {
			return err
		}
		if err := running.Begin(); err != nil {
			return err
		}
		failed := kgo.AbortingFirstErrPromise(running.Client())
		found.EachRecord(func(each *kgo.Record) {
			running.Produce(ctx, &kgo.Record{Topic: to, Partition: each.Partition, Value: each.Value}, failed.Promise())
		})
		sent := failed.Err()
		committed, err := running.End(ctx, kgo.TransactionEndTry(sent == nil))
		if err != nil {
			return err
		}
		if !committed && sent == nil {
			sent = fmt.Errorf("a rebalance")
		}
		ended(sent)
	}
}

// copier has a producer for each partition: sarama sends no generation of the group with its offsets, so a copier that
// was replaced is fenced by its transactional id alone.
type copier struct {
	group, to string
	producers []sarama.SyncProducer
}

func (c *copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (c *copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *copier) ConsumeClaim(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	producer := c.producers[claim.Partition()]
	for first := range claim.Messages() {
		found := []*sarama.ConsumerMessage{first}
		for more := true; more && len(found) < perTransaction; {
			select {
			case next, open := <-claim.Messages():
				if open {
					found = append(found, next)
				}
				more = open
			default:
				more = false
			}
		}
		err := c.copy(producer, found)
		ended(err)
		if err != nil {
			if err := producer.AbortTxn(); err != nil {
				return err
			}
			return err
		}
	}
	return nil
}

func (c *copier) copy(producer sarama.SyncProducer, found []*sarama.ConsumerMessage) error {
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	var copies []*sarama.ProducerMessage
	for _, each := range found {
		copies = append(copies, &sarama.ProducerMessage{
			Topic: c.to, Partition: each.Partition, Value: sarama.ByteEncoder(each.Value),
		})
	}
	if err := producer.SendMessages(copies); err != nil {
		return err
	}
	if err := producer.AddMessageToTxn(found[len(found)-1], c.group, nil); err != nil {
		return err
	}
	return producer.CommitTxn()
}

func saramaCopier(bootstrap, from, to string, partitions int32) error {
	config := sarama.NewConfig()
	config.Version = sarama.V2_6_0_0
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.InstanceId = from
	config.Consumer.Group.Session.Timeout = session
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Net.MaxOpenRequests = 1
	running := &copier{group: from, to: to}
	for partition := range partitions {
		config.Producer.Transaction.ID = fmt.Sprintf("%s-%d", from, partition)
		with := *config
		producer, err := sarama.NewSyncProducer([]string{bootstrap}, &with)
		if err != nil {
			return err
		}
		running.producers = append(running.producers, producer)
	}
	group, err := sarama.NewConsumerGroup([]string{bootstrap}, from, config)
	if err != nil {
		return err
	}
	for err == nil {
		err = group.Consume(context.Background(), []string{from}, running)
	}
	return err
}

func main() {
	partitions, err := strconv.ParseInt(os.Args[5], 10, 32)
	if err != nil {
		panic(err)
	}
	run := map[string]func(bootstrap, from, to string, partitions int32) error{
		"franz-go": franz, "sarama": saramaCopier,
	}[os.Args[1]]
	panic(run(os.Args[2], os.Args[3], os.Args[4], int32(partitions)))
}
