// Logs in by franz-go, guesses Kafka's version, writes a record and reads it: BOOTSTRAP TOPIC MECHANISM USER SECRET.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	bootstrap, topic, mechanism, user, secret := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	login := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: user, Pass: secret}.AsMechanism(),
		"SCRAM-SHA-256": scram.Auth{User: user, Pass: secret}.AsSha256Mechanism(),
		"SCRAM-SHA-512": scram.Auth{User: user, Pass: secret}.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: secret}.AsMechanism(),
	}[mechanism]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.SASL(login), kgo.AllowAutoTopicCreation(), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if versions, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, client); err == nil {
		fmt.Println(kversion.FromApiVersionsResponse(versions).VersionGuess())
	}
	record := &kgo.Record{Topic: topic, Value: []byte("by " + mechanism)}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	for _, found := range client.PollFetches(ctx).Records() {
		fmt.Println(string(found.Value))
	}
}
