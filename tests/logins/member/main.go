// A member of a group by franz-go: BOOTSTRAP TOPIC GROUP PROTOCOL. It commits after each poll, leaves when its stdin ends,
// and writes a line for each record, each commit, and what it owns, as tests/jepsen/programs/Consume.java does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, topic, group, protocol := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.RangeBalancer()), kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.OnPartitionsAssigned(report("owned")), kgo.OnPartitionsRevoked(report("revoked")),
		kgo.OnPartitionsLost(report("lost")), kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.Canceled) {
				fmt.Println("failed", failed.Err)
			}
		}
		records := fetches.Records()
		for _, record := range records {
			fmt.Println("delivered", record.Partition, record.Offset)
		}
		if err := client.CommitRecords(ctx, records...); err == nil {
			for _, record := range records {
				fmt.Println("committed", record.Partition, record.Offset+1, 0, 0)
			}
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
}

func report(what string) func(context.Context, *kgo.Client, map[string][]int32) {
	first := time.Now().UnixNano
	return func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
		line := fmt.Sprint(what, " ", first())
		if what == "owned" {
			_, generation := client.GroupMetadata()
			line += fmt.Sprint(" ", generation)
		}
		for _, some := range partitions {
			line += " " + strings.Trim(fmt.Sprint(some), "[]")
		}
		fmt.Println(line)
	}
}
