// Command go-client writes lines to a topic of Tidemark and reads them back.
//
//	go-client -bootstrap 127.0.0.1:9092 create -partitions 3 -replicas 3 events
//	echo 'IAH=late' | go-client -bootstrap 127.0.0.1:9092 produce -key-separator = events
//	go-client -bootstrap 127.0.0.1:9092 consume events
//
// produce prints partition, offset and value of each acknowledged line; consume prints partition, offset, key and
// value of each record up to the present end. Both go on while brokers fail and leaders change, for -timeout at most.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"example/go-client/client"
)

const (
	linesMax = 20 // of a round of produce requests
	// A record that was sent twice, because an answer was lost, is known by the run that sent it and its number.
	runHeader    = "run"
	numberHeader = "number"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("go-client: ")
	bootstrap := flag.String("bootstrap", "127.0.0.1:9092", "host:port of brokers, comma-separated")
	timeout := flag.Duration("timeout", time.Minute, "give up after this time")
	flag.Parse()
	commands := map[string]func(context.Context, *client.Client, []string) error{
		"create": create, "produce": produce, "consume": consume,
	}
	command, known := commands[flag.Arg(0)]
	if !known {
		log.Fatal("say create, produce or consume, and the topic")
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	c := client.New(strings.Split(*bootstrap, ",")...)
	defer c.Close()
	if err := command(ctx, c, flag.Args()[1:]); err != nil {
		log.Fatal(err)
	}
}

func parse(flags *flag.FlagSet, arguments []string) (topic string, err error) {
	if err := flags.Parse(arguments); err != nil {
		return "", err
	}
	if flags.NArg() != 1 {
		return "", fmt.Errorf("%s: name one topic, behind the options", flags.Name())
	}
	return flags.Arg(0), nil
}

func create(ctx context.Context, c *client.Client, arguments []string) error {
	flags := flag.NewFlagSet("create", flag.ContinueOnError)
	partitions := flags.Int("partitions", 1, "number of partitions")
	replicas := flags.Int("replicas", 1, "replication factor")
	inSync := flags.Int("min-insync-replicas", 1, "replicas that must have a record before it is acknowledged")
	topic, err := parse(flags, arguments)
	if err != nil {
		return err
	}
	configs := map[string]string{"min.insync.replicas": strconv.Itoa(*inSync)}
	return c.CreateTopic(ctx, topic, int32(*partitions), int32(*replicas), configs)
}

func produce(ctx context.Context, c *client.Client, arguments []string) error {
	flags := flag.NewFlagSet("produce", flag.ContinueOnError)
	separator := flags.String("key-separator", "", "what is before it in a line is the key")
	topic, err := parse(flags, arguments)
	if err != nil {
		return err
	}
	partitions, err := c.Partitions(ctx, topic)
	if err != nil {
		return err
	}
	run := strconv.FormatUint(rand.Uint64(), 36)
	lines := read(os.Stdin)
	for number := 0; ; {
		round := make(map[int32][]client.Record)
		for _, line := range take(lines, linesMax) {
			record := client.Record{
				Value:   []byte(line),
				Headers: map[string]string{runHeader: run, numberHeader: strconv.Itoa(number)},
			}
			partition := int32(number / linesMax % partitions) // without a key: in turn
			if key, value, found := strings.Cut(line, *separator); *separator != "" && found {
				record.Key, record.Value = []byte(key), []byte(value)
				partition = client.PartitionFor(record.Key, partitions)
			}
			round[partition] = append(round[partition], record)
			number++
		}
		if len(round) == 0 {
			return nil
		}
		if err := send(ctx, c, topic, round); err != nil {
			return err
		}
	}
}

// send writes to all partitions at once, and waits for all, so that each partition has one request under way: the
// records of a key keep their order.
func send(ctx context.Context, c *client.Client, topic string, round map[int32][]client.Record) error {
	var group sync.WaitGroup
	var output sync.Mutex
	failures := make(chan error, len(round))
	for partition, records := range round {
		group.Add(1)
		go func() {
			defer group.Done()
			base, err := c.Produce(ctx, topic, partition, records)
			if err != nil {
				failures <- fmt.Errorf("%s-%d: %w", topic, partition, err)
				return
			}
			output.Lock()
			defer output.Unlock()
			for i, record := range records {
				fmt.Printf("%d\t%d\t%s\n", partition, base+int64(i), record.Value)
			}
		}()
	}
	group.Wait()
	close(failures)
	return <-failures // nil if there is none
}

func consume(ctx context.Context, c *client.Client, arguments []string) error {
	flags := flag.NewFlagSet("consume", flag.ContinueOnError)
	once := flags.Bool("once", false, "leave out the repeats of records that a go-client had to send again")
	topic, err := parse(flags, arguments)
	if err != nil {
		return err
	}
	partitions, err := c.Partitions(ctx, topic)
	if err != nil {
		return err
	}
	// A client that reads many partitions puts all that a leader has into one request; one by one is easier to read.
	for partition := range int32(partitions) {
		offset, err := c.ListOffset(ctx, topic, partition, client.Earliest)
		if err != nil {
			return err
		}
		end, err := c.ListOffset(ctx, topic, partition, client.Latest)
		if err != nil {
			return err
		}
		last := make(map[string]int) // by run; within a partition the numbers of a run rise
		for offset < end {
			var records []client.Record
			records, offset, err = c.Fetch(ctx, topic, partition, offset)
			if err != nil {
				return err
			}
			for _, record := range records {
				if *once && isRepeat(record, last) {
					continue
				}
				fmt.Printf("%d\t%d\t%s\t%s\n", partition, record.Offset, record.Key, record.Value)
			}
		}
	}
	return nil
}

// isRepeat tells whether the record was there before. It needs one number for each run, since a run repeats a request
// before it sends the next one.
func isRepeat(record client.Record, last map[string]int) bool {
	number, err := strconv.Atoi(record.Headers[numberHeader])
	if err != nil {
		return false // not a go-client's
	}
	run := record.Headers[runHeader]
	before, known := last[run]
	if known && number <= before {
		return true
	}
	last[run] = number
	return false
}

// read returns the lines of r as they come.
func read(r io.Reader) <-chan string {
	lines := make(chan string, linesMax)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(r)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		if err := scanner.Err(); err != nil {
			log.Fatal(err)
		}
	}()
	return lines
}

// take waits for a line, and returns it with those that are there already; none at the end.
func take(lines <-chan string, most int) []string {
	line, open := <-lines
	if !open {
		return nil
	}
	taken := []string{line}
	for len(taken) < most {
		select {
		case line, open := <-lines:
			if !open {
				return taken
			}
			taken = append(taken, line)
		default:
			return taken
		}
	}
	return taken
}
