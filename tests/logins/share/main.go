// Reads a topic as a member of a share group by franz-go: BOOTSTRAP TOPIC GROUP COUNT. Ends when COUNT are accepted.
//
// A record whose value is an odd number is released when it first comes. One that can be divided by ten is renewed
// before it is accepted, and one with the rest five is rejected, which counts as accepted. It writes a line for each:
//
//	accepted|released|rejected VALUE DELIVERY-COUNT
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func number(text string) int {
	found, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return found
}

func main() {
	bootstrap, topic, group, left := os.Args[1], os.Args[2], os.Args[3], number(os.Args[4])
	failed := func(_ *kgo.Client, results kgo.ShareAckResults) {
		if err := results.Error(); err != nil {
			fmt.Println("failed", err)
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics(topic), kgo.ShareGroup(group), kgo.ShareAckCallback(failed),
	)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	flush := func() {
		if err := client.FlushAcks(ctx); err != nil {
			panic(err)
		}
	}
	for left > 0 && ctx.Err() == nil {
		records := client.PollFetches(ctx).Records()
		for _, record := range records {
			if number(string(record.Value))%10 == 0 {
				record.Ack(kgo.AckRenew)
			}
		}
		flush()
		for _, record := range records {
			value, status, done := number(string(record.Value)), kgo.AckAccept, "accepted"
			switch {
			case value%10 == 5:
				status, done = kgo.AckReject, "rejected"
			case value%2 == 1 && record.DeliveryCount() == 1:
				status, done = kgo.AckRelease, "released"
			}
			if status != kgo.AckRelease {
				left--
			}
			record.Ack(status)
			fmt.Println(done, value, record.DeliveryCount())
		}
		flush()
	}
	client.Close()
}
