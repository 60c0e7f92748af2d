//! Produce requests of any bytes: what is read of one lies in its frame, and its response is a frame with a result for
//! each batch.

#![no_main]

use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::partition::TopicName;
use korvet_proto::produce::{Request, Written, read, write};
use korvet_proto::wire::{ELEMENTS_MAX, Reader};
use korvet_proto::{ErrorCode, Malformed};

const FLEXIBLE_FROM: i16 = 9;
const MESSAGES_FROM: i16 = 8;
const LOG_START_FROM: i16 = 5;
const THROTTLE_MS: i32 = 7;
const SIZE_AND_CORRELATION_ID_BYTES: usize = 8;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(([version, code], message)) = data.split_first_chunk() else { return };
    // Most keys and versions would be refused at once.
    let mut frame = [&[0, 0, 0, 3 + version % 11], message].concat();
    let Ok(request) = read(&frame) else { return };
    assert!(request.topics.len() + request.partition_count() <= ELEMENTS_MAX);
    for partition in request.topics.iter().flat_map(|topic| &topic.partitions) {
        assert!(partition.records.clone().is_none_or(|records| frame.get(records).is_some()));
    }
    let is_written = |place: usize| (usize::from(*code) >> (place % 8)) & 1 == 0;
    let records = vec![(i32::from(*code), "no key".to_owned()); usize::from(*code) % 3];
    let text = String::from_utf8_lossy(message).into_owned();
    let failure = Failure { code: ErrorCode::InvalidRecord, message: text, records, kind: FailureKind::Rule };
    let written = |place: usize| Written { base_offset: place as i64, append_time_ms: -1, log_start: 0 };
    let results = (0..).map(|place| if is_written(place) { Ok(written(place)) } else { Err(&failure) });
    let response = write(&request, results, THROTTLE_MS);
    check(&response, &request, is_written).unwrap();
    // What follows a message changes nothing.
    frame.push(*code);
    assert_eq!(read(&frame), Ok(request));
});

/// Read a response as a client does.
fn check(response: &[u8], request: &Request, is_written: impl Fn(usize) -> bool) -> Result<(), Malformed> {
    let (size, rest) = response.split_first_chunk().unwrap();
    assert_eq!(u32::from_be_bytes(*size) as usize, rest.len());
    assert_eq!(rest[..4], request.correlation_id.to_be_bytes());
    let (version, is_flexible) = (request.version, request.version >= FLEXIBLE_FROM);
    let mut reader = Reader::new(SIZE_AND_CORRELATION_ID_BYTES, is_flexible);
    let skip_tags = |reader: &mut Reader| if is_flexible { reader.skip_tags(response) } else { Ok(()) };
    skip_tags(&mut reader)?;
    assert_eq!(reader.count(response, "responses", false)?, Some(request.topics.len()));
    let mut place = 0;
    for topic in &request.topics {
        match &topic.name {
            TopicName::Name(name) => assert_eq!(string(&mut reader, response)?, Some(name.as_bytes())),
            TopicName::Id(id) => assert_eq!(&reader.array::<16>(response)?, id),
        }
        assert_eq!(reader.count(response, "partitions", false)?, Some(topic.partitions.len()));
        for partition in &topic.partitions {
            assert_eq!(i32::from_be_bytes(reader.array(response)?), partition.index);
            let code = i16::from_be_bytes(reader.array(response)?);
            assert_eq!(code == 0, is_written(place));
            let base_offset = i64::from_be_bytes(reader.array(response)?);
            assert_eq!(base_offset, if code == 0 { place as i64 } else { -1 });
            reader.bytes(response, if version >= LOG_START_FROM { 16 } else { 8 })?;
            if version >= MESSAGES_FROM {
                for _ in 0..reader.count(response, "record errors", false)?.unwrap() {
                    reader.array::<4>(response)?;
                    assert_eq!(string(&mut reader, response)?, Some(&b"no key"[..]));
                    skip_tags(&mut reader)?;
                }
                let message = string(&mut reader, response)?;
                assert!(code != 0 || message.is_none());
            }
            skip_tags(&mut reader)?;
            place += 1;
        }
        skip_tags(&mut reader)?;
    }
    assert_eq!(i32::from_be_bytes(reader.array(response)?), THROTTLE_MS);
    skip_tags(&mut reader)?;
    assert_eq!(reader.position(), response.len());
    Ok(())
}

fn string<'a>(reader: &mut Reader, response: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let Some(size) = reader.length(response, "text", true, true)? else { return Ok(None) };
    Ok(Some(reader.bytes(response, size)?))
}
