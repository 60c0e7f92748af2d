//! Fetch requests of any bytes: what is read of one has room in its frame, a session of it has its partitions, and its
//! response is a frame with a result for each, in pieces of which the small ones are joined.

#![no_main]

use std::time::Duration;

use korvet_proto::Malformed;
use korvet_proto::fetch::session::Sessions;
use korvet_proto::fetch::{Header, NAMED_MAX, PartitionResult, Request, read, write};
use korvet_proto::log::{Aborted, EpochStart};
use korvet_proto::partition::TopicName;
use korvet_proto::peer::PeerId;
use korvet_proto::shared::{Piece, Shared};
use korvet_proto::wire::Reader;

const FLEXIBLE_FROM: i16 = 12;
const READ_REPLICAS_FROM: i16 = 11;
const SESSIONS_FROM: i16 = 7;
const LOG_START_FROM: i16 = 5;
const SIZE_AND_CORRELATION_ID_BYTES: usize = 8;
const PIECE_BYTES_MIN: usize = 4096;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(([version, size], message)) = data.split_first_chunk() else { return };
    // Most keys and versions would be refused at once.
    let mut frame = [&[0, 1, 0, 4 + version % 15], message].concat();
    let Ok(request) = read(&frame) else { return };
    let forgotten: usize = request.forgotten.iter().map(|topic| topic.partitions.len()).sum();
    let elements = request.topics.len() + request.partition_count() + request.forgotten.len() + forgotten;
    assert!(elements <= NAMED_MAX.min(frame.len()));
    check_session(&request);
    let records = Shared::from(vec![*size; usize::from(*size) * 40]);
    let results = request
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|asked| (&topic.name, result(asked.index, &records))));
    let header = Header {
        version: request.version,
        correlation_id: request.correlation_id,
        throttle_ms: 7,
        error: 0,
        session_id: request.session_id,
    };
    let pieces = write(&header, results.collect());
    assert!(pieces.windows(2).all(|pair| pair.iter().any(|piece| piece.len() >= PIECE_BYTES_MIN)));
    check(&pieces.iter().flat_map(AsRef::as_ref).copied().collect::<Vec<u8>>(), &request, &records).unwrap();
    // What follows a message changes nothing.
    frame.push(*size);
    assert_eq!(read(&frame), Ok(request));
});

/// What is read of a partition: all that may be there is there for every second one.
fn result(index: i32, records: &Shared) -> PartitionResult {
    let aborted = vec![Aborted { producer_id: index.into(), first_offset: 0 }];
    PartitionResult {
        index,
        error: 0,
        high_watermark: 1,
        last_stable_offset: 1,
        log_start: 0,
        diverging: (index % 2 == 0).then_some(EpochStart { epoch: index, start: 0 }),
        aborted: (index % 2 == 0).then_some(aborted),
        records: vec![Piece::Part(records.clone()), Piece::Made(b"end".to_vec())],
    }
}

/// A session of a request has its partitions, once each, and without any it ends.
fn check_session(request: &Request) {
    let (peer, now) = (PeerId::from_u64(1), Duration::ZERO);
    let mut sessions = Sessions::new(1, 1);
    let Some(session_id) = sessions.create(peer, request, now) else { return };
    let session = sessions.get(session_id).unwrap();
    assert!(session.len() <= request.partition_count());
    assert_eq!(session.due(), session.iter().map(|(key, _)| key).collect::<Vec<_>>());
    assert_eq!(session.topics().map(|name| session.keys_of(name).count()).sum::<usize>(), session.len());
    let again = Request { session_id, session_epoch: 1, ..request.clone() };
    let resumed = sessions.resume(peer, &again, now);
    let left = sessions.get(session_id).map_or(0, |session| session.len());
    assert_eq!((resumed, sessions.counts().partitions), (Ok((left > 0).then_some(session_id)), left));
}

/// Read a response as a client does.
fn check(response: &[u8], request: &Request, records: &Shared) -> Result<(), Malformed> {
    let (size, rest) = response.split_first_chunk().unwrap();
    assert_eq!(u32::from_be_bytes(*size) as usize, rest.len());
    assert_eq!(rest[..4], request.correlation_id.to_be_bytes());
    let (version, is_flexible) = (request.version, request.version >= FLEXIBLE_FROM);
    let mut reader = Reader::new(SIZE_AND_CORRELATION_ID_BYTES, is_flexible);
    let skip_tags = |reader: &mut Reader| if is_flexible { reader.skip_tags(response) } else { Ok(()) };
    skip_tags(&mut reader)?;
    reader.bytes(response, if version >= SESSIONS_FROM { 10 } else { 4 })?;
    let mut asked =
        request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|asked| (&topic.name, asked.index)));
    for _ in 0..reader.count(response, "responses", false)?.unwrap() {
        let id = if version > 12 { Some(reader.array::<16>(response)?) } else { None };
        let name = if version > 12 { None } else { string(&mut reader, response)? };
        for _ in 0..reader.count(response, "partitions", false)?.unwrap() {
            let (topic, index) = asked.next().unwrap();
            match topic {
                TopicName::Name(topic) => assert_eq!(name, Some(topic.as_bytes())),
                TopicName::Id(topic) => assert_eq!(id, Some(*topic)),
            }
            assert_eq!(i32::from_be_bytes(reader.array(response)?), index);
            reader.bytes(response, if version >= LOG_START_FROM { 26 } else { 18 })?;
            for _ in 0..reader.count(response, "aborted", true)?.unwrap_or(0) {
                assert_eq!(i64::from_be_bytes(reader.array(response)?), index.into());
                reader.bytes(response, 8)?;
                skip_tags(&mut reader)?;
            }
            reader.bytes(response, if version >= READ_REPLICAS_FROM { 4 } else { 0 })?;
            let size = reader.length(response, "records", false, false)?.unwrap();
            let (shared, made) = reader.bytes(response, size)?.split_at(records.as_ref().len());
            assert_eq!((shared, made), (records.as_ref(), &b"end"[..]));
            skip_tags(&mut reader)?;
        }
        skip_tags(&mut reader)?;
    }
    assert!(asked.next().is_none());
    skip_tags(&mut reader)?;
    assert_eq!(reader.position(), response.len());
    Ok(())
}

fn string<'a>(reader: &mut Reader, response: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let Some(size) = reader.length(response, "text", true, false)? else { return Ok(None) };
    Ok(Some(reader.bytes(response, size)?))
}
