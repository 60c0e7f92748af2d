"""The console: pages in a browser on the ops port, and the JSON that they show.

It runs in the ops process and asks the broker's own port as any other client would, within seconds; what it tells of
processes it reads off the table. Nothing here imports gevent or Redis. Whoever reaches the port may read; changes
take a token. Its modules:

    console   which request is answered by whom, how many at once, and what an error becomes
    guard     who may ask: by which name, from which page, with which token
    site      the pages themselves, which lie in web/: one document, its modules and its style
    query     what a request asks for, read strictly
    asking    clients of the broker, each for one request at a time and for seconds
    paging    long lists, a page at a time
    overview  this broker's processes and counters, and the brokers of the cluster
    topics    topics and their partitions, sizes and configs
    groups    consumer groups, their members, and how far they are behind
    records   records of a topic, sought by offset and time
    tail      where the newest records of a log begin
    content   bytes of keys and values as JSON can hold them
    lake      how far topics are archived
    changes   what an operator changes
"""
