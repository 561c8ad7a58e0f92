// Package client is a small client of Tidemark, written against nothing but the protocol in proto/tidemark/v1.
//
// It shows what every client has to do: ask any broker for the leaders, send each request to the leader of its
// partition, and, when a leader changes, ask again and repeat. A Client may be used by several goroutines.
package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	tidemark "example/go-client/tidemark/v1"
)

const (
	requestTimeout = 10 * time.Second
	backoffFirst   = 100 * time.Millisecond
	backoffMax     = time.Second
	// fetchMaxBytes bounds an answer. One batch always comes whole, so more has to be received.
	fetchMaxBytes   = 8 << 20
	receiveMaxBytes = 128 << 20
)

// Client holds one connection for each address, and what it knows of the cluster.
type Client struct {
	bootstrap []string

	mu      sync.Mutex
	conns   map[string]*grpc.ClientConn
	brokers map[int32]string // address by node id
	topics  map[string]*topic
}

type topic struct {
	id         string // the 16 bytes of its UUID
	partitions []leader
	stale      bool // a request met an error that says so: ask before the next one
}

type leader struct {
	nodeID int32 // -1: none at the moment
	epoch  int32
}

// New returns a client that finds the cluster through these addresses. It connects when it has to.
func New(bootstrap ...string) *Client {
	return &Client{
		bootstrap: bootstrap,
		conns:     make(map[string]*grpc.ClientConn),
		brokers:   make(map[int32]string),
		topics:    make(map[string]*topic),
	}
}

// Close closes the connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	clear(c.conns)
}

// Partitions returns the number of partitions of a topic.
func (c *Client) Partitions(ctx context.Context, name string) (int, error) {
	found, err := c.topic(ctx, name)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(found.partitions), nil
}

func (c *Client) conn(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.conns[address]; conn != nil {
		return conn, nil
	}
	// gRPC's own back-off grows to two minutes: a broker that is back would be found late.
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = backoffFirst, backoffMax
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(receiveMaxBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 2 * time.Second}),
	)
	if err == nil {
		c.conns[address] = conn
	}
	return conn, err
}

// onAny calls f with one node after another, until one answers: those of the bootstrap list, then all known brokers.
func (c *Client) onAny(ctx context.Context, f func(context.Context, *grpc.ClientConn) error) error {
	c.mu.Lock()
	addresses := append([]string(nil), c.bootstrap...)
	for _, address := range c.brokers {
		addresses = append(addresses, address)
	}
	c.mu.Unlock()
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	err := errors.New("no address to connect to")
	for _, address := range addresses {
		if err = c.on(ctx, address, f); err == nil || !isTransport(err) {
			return err
		}
	}
	return err
}

// on calls f with a deadline. Each call needs one: a node that vanished does not answer.
func (c *Client) on(ctx context.Context, address string, f func(context.Context, *grpc.ClientConn) error) error {
	conn, err := c.conn(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return f(ctx, conn)
}

// onLeader calls f with the leader of a partition, and repeats what may be repeated until ctx is over: with a new
// leader if there is one by then.
func (c *Client) onLeader(
	ctx context.Context, name string, partition int32, f func(context.Context, tidemark.LogClient) error,
) error {
	return retry(ctx, func() error {
		address, err := c.leaderOf(ctx, name, partition)
		if err != nil {
			return err
		}
		err = c.on(ctx, address, func(ctx context.Context, conn *grpc.ClientConn) error {
			return f(ctx, tidemark.NewLogClient(conn))
		})
		if isRetriable(err) {
			c.distrust(name)
		}
		return err
	})
}

func (c *Client) leaderOf(ctx context.Context, name string, partition int32) (string, error) {
	found, err := c.topic(ctx, name)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if partition < 0 || int(partition) >= len(found.partitions) {
		return "", fmt.Errorf("%s has %d partitions, none of number %d", name, len(found.partitions), partition)
	}
	address, known := c.brokers[found.partitions[partition].nodeID]
	if !known {
		found.stale = true
		return "", &Error{tidemark.ErrorCode_LEADER_NOT_AVAILABLE, fmt.Sprintf("%s-%d has no leader", name, partition)}
	}
	return address, nil
}

// topic returns what is known of a topic; it asks if nothing is, or nothing new.
func (c *Client) topic(ctx context.Context, name string) (*topic, error) {
	c.mu.Lock()
	found := c.topics[name]
	isKnown := found != nil && !found.stale
	c.mu.Unlock()
	if isKnown {
		return found, nil
	}
	err := retry(ctx, func() error {
		var answer *tidemark.MetadataResponse
		err := c.onAny(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			answer, err = tidemark.NewLogClient(conn).Metadata(ctx, &tidemark.MetadataRequest{Topics: []string{name}})
			return err
		})
		if err != nil {
			return err
		}
		found, err = c.learn(name, answer)
		return err
	})
	return found, err
}

func (c *Client) learn(name string, answer *tidemark.MetadataResponse) (*topic, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, broker := range answer.Brokers {
		c.brokers[broker.NodeId] = net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))
	}
	for _, one := range answer.Topics {
		if one.Name != name {
			continue
		}
		if err := asError(one.ErrorCode, name); err != nil {
			return nil, err
		}
		found := &topic{id: string(one.TopicId), partitions: make([]leader, len(one.Partitions))}
		before := c.topics[name]
		if before != nil && before.id != found.id {
			message := name + " was deleted and made anew: its offsets begin again; start with a new client"
			return nil, &Error{tidemark.ErrorCode_INCONSISTENT_TOPIC_ID, message}
		}
		for _, p := range one.Partitions {
			found.partitions[p.PartitionIndex] = leader{p.LeaderId, p.LeaderEpoch}
		}
		if before != nil {
			keepNewer(found.partitions, before.partitions)
		}
		c.topics[name] = found
		return found, nil
	}
	return nil, asError(tidemark.ErrorCode_UNKNOWN_TOPIC_OR_PARTITION, name)
}

// keepNewer keeps leaders of later epochs: the broker that was asked may lag behind the one that was asked before.
func keepNewer(partitions, before []leader) {
	for i := range min(len(partitions), len(before)) {
		if before[i].epoch > partitions[i].epoch {
			partitions[i] = before[i]
		}
	}
}

func (c *Client) distrust(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.topics[name]; found != nil {
		found.stale = true
	}
}

// Error is the error code of an answer, as in errors.proto.
type Error struct {
	Code    tidemark.ErrorCode
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

func asError(code tidemark.ErrorCode, message string) error {
	if code == tidemark.ErrorCode_NONE {
		return nil
	}
	return &Error{code, message}
}

// retriable are the codes that errors.proto marks with "retry", as far as produce, fetch and look-up have them.
var retriable = map[tidemark.ErrorCode]bool{
	tidemark.ErrorCode_CORRUPT_MESSAGE:                  true,
	tidemark.ErrorCode_UNKNOWN_TOPIC_OR_PARTITION:       true,
	tidemark.ErrorCode_LEADER_NOT_AVAILABLE:             true,
	tidemark.ErrorCode_NOT_LEADER_OR_FOLLOWER:           true,
	tidemark.ErrorCode_REQUEST_TIMED_OUT:                true,
	tidemark.ErrorCode_BROKER_NOT_AVAILABLE:             true,
	tidemark.ErrorCode_REPLICA_NOT_AVAILABLE:            true,
	tidemark.ErrorCode_NETWORK_EXCEPTION:                true,
	tidemark.ErrorCode_NOT_ENOUGH_REPLICAS:              true,
	tidemark.ErrorCode_NOT_ENOUGH_REPLICAS_AFTER_APPEND: true,
	tidemark.ErrorCode_NOT_CONTROLLER:                   true,
	tidemark.ErrorCode_KAFKA_STORAGE_ERROR:              true,
	tidemark.ErrorCode_FENCED_LEADER_EPOCH:              true,
	tidemark.ErrorCode_UNKNOWN_LEADER_EPOCH:             true,
	tidemark.ErrorCode_OFFSET_NOT_AVAILABLE:             true,
	tidemark.ErrorCode_UNKNOWN_TOPIC_ID:                 true,
}

func isRetriable(err error) bool {
	var known *Error
	if errors.As(err, &known) {
		return retriable[known.Code]
	}
	return isTransport(err)
}

// isTransport tells whether no answer came. gRPC reports a connection that broke under a call in several ways.
func isTransport(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled, codes.Internal:
		return true
	}
	return false
}

// retry repeats f while its error is retriable and ctx is not over. The waits double, with some chance in them, so
// that the clients of a broker that is back do not all come at once.
func retry(ctx context.Context, f func() error) error {
	wait := backoffFirst
	for {
		err := f()
		if err == nil || !isRetriable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last error was: %w", ctx.Err(), err)
		case <-time.After(time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))):
		}
		wait = min(2*wait, backoffMax)
	}
}
