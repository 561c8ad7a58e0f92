"""The answers of a broker's listeners: produce, fetch, offsets, metadata, administration.

`listeners.BrokerListeners` runs the gRPC servers. `log_service.LogService` translates wire messages
for `log_service.RequestHandlers`: `produce.ProduceHandler`, `fetching.FetchHandler`,
`offsets.OffsetFinder`, `record_deletion.RecordDeleter`, `producer_ids.ProducerIdManager`.
`broker_admin` answers for the disks of this node, `read_plans` for jobs that read the store
themselves. `fetch_session` has the partitions of a fetch. `tier_reads` bounds reads from the tier,
`request_memory` and `answer_memory` the bytes of requests and answers in flight,
`throttling.Throttling` the rates of clients. `callers` says who a client is.

`node.broker` puts all of it together; only the two memories are told of by `node.metrics`.

Errors are codes per partition; a call fails only if the node cannot serve at all. Batches stay byte
slices of the request or of the log, and no record is decoded, except for plain records. A consumer
gets nothing above the high watermark (RULES.md I12). Every wait ends with its timeout.
"""
