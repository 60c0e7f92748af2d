"""The Kafka wire protocol, pure: bytes in, structs out, and back. No input or output, no clock, no state.

wire       Kafka's primitive types, one row each
types      values that are no messages: numbers that have names, TopicPartition
schema     how a message is declared: Message, Part, Api, since()
compile    declarations -> codecs of korvet_core, one per message and version
frame      the size prefix and header of responses
messages   one file per API key, request and response together
records    record batches (magic 2) and their compression
"""
