// Runs kfake, franz-go's fake of a Kafka cluster, with one broker in memory, on the port that is its argument.
package main

import (
	"log"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	versions := kversion.Stable()
	// Kafka's Java admin client fails on null lists in its answers: the configs of CreateTopics from version 5, and the
	// replicas of DescribeTopicPartitions, which it does without.
	versions.SetMaxKeyVersion(19, 4)
	versions.SetMaxKeyVersion(75, -1)
	port, err := strconv.Atoi(os.Args[1])
	if err == nil {
		_, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.MaxVersions(versions))
	}
	if err != nil {
		log.Fatal(err)
	}
	select {}
}
