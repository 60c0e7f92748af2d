//! One connection: ciphertext in, plaintext out, and back.

use std::mem;

use rustls::Error;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic};

use crate::config::Server;
use crate::failure::Failure;

/// Encrypted before they are sent: more are no faster.
pub const PIECE_BYTES: usize = 64 * 1024;
/// Bytes without any data in them: an honest peer sends a change of keys at times, and an alert. So large may a message of
/// the handshake be as well, with all that it is wrapped in.
const BARREN_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of data in one record.
const RECORD_BYTES: usize = 16 * 1024;
/// What a record has beside its data, at most; and room for an alert or a change of keys before it.
const OVERHEAD_BYTES: usize = 256;
const HANDSHAKE_RECORD: u8 = 0x16;
/// What a record has before its data: kind, version, size.
const HEADER_BYTES: usize = 5;
/// Outgoing bytes that an idle connection keeps room for.
const KEPT_BYTES: usize = 4 * 1024;

/// TLS of one connection. After a failure, and after `close`, it takes nothing in and encrypts nothing.
pub struct Session {
    tls: UnbufferedServerConnection,
    /// The beginning of a record of which the rest is still to come, after the others of its handshake's message.
    incoming: Vec<u8>,
    outgoing: Outgoing,
    /// Bytes received since there was data in any.
    barren: usize,
    is_new: bool,
    is_over: bool,
    is_closed: bool,
}

impl Session {
    /// Begin a connection.
    pub fn new(server: &Server) -> Result<Self, Failure> {
        Ok(Self {
            tls: server.config().and_then(UnbufferedServerConnection::new).map_err(Failure::Tls)?,
            incoming: Vec::new(),
            outgoing: Outgoing::default(),
            barren: 0,
            is_new: true,
            is_over: false,
            is_closed: false,
        })
    }

    /// Decrypt what has arrived, where it lies, and append its data to `plain`.
    pub fn received(&mut self, data: &mut [u8], plain: &mut Vec<u8>) -> Result<(), Failure> {
        if data.is_empty() || self.is_over || self.is_closed {
            return Ok(());
        }
        let done = self.decrypt(data, plain);
        self.is_over |= done.is_err();
        done
    }

    /// Encrypt the beginning of `pieces`, up to PIECE_BYTES, if nothing is unwritten; returns how many of their bytes.
    /// A call without a piece, after all was written, gives the memory back that many bytes took.
    pub fn encrypt<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<usize, Failure> {
        if self.is_over || !self.unwritten().is_empty() {
            return Ok(0);
        }
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = self.tls.process_tls_records(&mut self.incoming).state
        else {
            return Ok(0); // the handshake is under way
        };
        let done = in_records(pieces, |data| self.outgoing.seal(data, &mut traffic));
        if self.unwritten().is_empty() && self.outgoing.bytes.len() > KEPT_BYTES {
            self.outgoing = Outgoing::default();
        }
        self.is_over |= done.is_err();
        done.map_err(|_| Failure::Tls(Error::EncryptError))
    }

    /// Ciphertext for the peer: of data, of the handshake, of new keys, and of alerts.
    pub fn unwritten(&self) -> &[u8] {
        self.outgoing.bytes.get(self.outgoing.written..self.outgoing.filled).unwrap_or_default()
    }

    /// The kernel took `size` bytes of what was unwritten.
    pub fn wrote(&mut self, size: usize) {
        self.outgoing.written = (self.outgoing.written + size).min(self.outgoing.filled);
    }

    /// Say that nothing follows: without that the peer must take the end for an attack.
    pub fn close(&mut self) {
        if mem::replace(&mut self.is_over, true) {
            return; // after a failure rustls may not be called with other bytes than those that it failed on
        }
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = self.tls.process_tls_records(&mut self.incoming).state {
            let _ = self.outgoing.append(OVERHEAD_BYTES, |room| traffic.queue_close_notify(room)); // has room
        }
    }

    /// Bytes that are kept until the rest of their record is here.
    pub fn withheld(&self) -> usize {
        self.incoming.len()
    }

    /// Whether the peer said that nothing follows.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether the handshake is still under way.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// The certificate that the peer has shown, in DER.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.tls.peer_certificates()?.first().map(AsRef::as_ref)
    }

    fn decrypt(&mut self, data: &mut [u8], plain: &mut Vec<u8>) -> Result<(), Failure> {
        if mem::take(&mut self.is_new) && data.first() != Some(&HANDSHAKE_RECORD) {
            return Err(Failure::NotTls);
        }
        let (size, before) = (data.len(), plain.len());
        let mut rest = data;
        // What is kept is completed record by record, so that all the others are decrypted where they lie.
        while !self.incoming.is_empty() && !rest.is_empty() {
            // In a handshake all at once: its messages may come in thousands of records.
            let step = if self.is_handshaking() { rest.len() } else { missing(&self.incoming).min(rest.len()) };
            let (now, later) = rest.split_at_mut(step);
            let mut kept = mem::take(&mut self.incoming);
            kept.extend_from_slice(now);
            let used = self.process(&mut kept, plain)?;
            if used < kept.len() {
                kept.drain(..used);
                self.incoming = kept;
            }
            rest = later;
        }
        if !rest.is_empty() {
            let used = self.process(rest, plain)?;
            self.incoming.extend_from_slice(rest.get(used..).unwrap_or_default());
        }
        self.barren = if plain.len() > before || self.is_handshaking() { 0 } else { self.barren + size };
        if self.barren.max(self.incoming.len()) > BARREN_BYTES_MAX { Err(Failure::Barren) } else { Ok(()) }
    }

    /// Decrypt what is whole, and go on with the handshake; returns how many bytes are used.
    fn process(&mut self, incoming: &mut [u8], plain: &mut Vec<u8>) -> Result<usize, Failure> {
        let mut used = 0;
        loop {
            let left = incoming.get_mut(used..).unwrap_or_default();
            let UnbufferedStatus { discard, state } = self.tls.process_tls_records(left);
            used += discard;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        used += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(message)) => self.outgoing.encode(message),
                Ok(ConnectionState::TransmitTlsData(message)) => message.done(),
                Ok(ConnectionState::PeerClosed) => self.is_closed = true,
                Ok(_) => return Ok(used), // it is the peer's turn, or that of data
                Err(error) => {
                    // What comes next is the alert with the reason, and then the same error again.
                    let left = incoming.get_mut(used..).unwrap_or_default();
                    if let Ok(ConnectionState::EncodeTlsData(alert)) = self.tls.process_tls_records(left).state {
                        self.outgoing.encode(alert);
                    }
                    return Err(Failure::Tls(error));
                }
            }
        }
    }
}

/// Bytes that the last of these records lacks, or that its header lacks; at least one.
fn missing(records: &[u8]) -> usize {
    let mut left = records;
    loop {
        let &[_, _, _, high, low, ref data @ ..] = left else { return HEADER_BYTES - left.len() };
        let size = usize::from(u16::from_be_bytes([high, low]));
        match data.get(size..) {
            Some(next) => left = next,
            None => return size - data.len(),
        }
    }
}

/// Give `seal` up to PIECE_BYTES in whole records and a last one, small pieces joined; returns how many bytes.
fn in_records<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    mut seal: impl FnMut(&[u8]) -> Result<(), EncryptError>,
) -> Result<usize, EncryptError> {
    let (mut size, mut joined) = (0, Vec::new());
    for piece in pieces {
        let mut rest = piece.get(..PIECE_BYTES - size).unwrap_or(piece);
        size += rest.len();
        if !joined.is_empty() {
            let (fitting, after) = rest.split_at(rest.len().min(RECORD_BYTES - joined.len()));
            joined.extend_from_slice(fitting);
            rest = after;
            if joined.len() == RECORD_BYTES {
                seal(&joined)?;
                joined.clear();
            }
        }
        let (whole, after) = rest.split_at(rest.len() - rest.len() % RECORD_BYTES);
        seal(whole)?;
        joined.extend_from_slice(after);
        if size == PIECE_BYTES {
            break;
        }
    }
    seal(&joined)?;
    Ok(size)
}

/// Ciphertext to be sent: `bytes` are filled up to a place, and the kernel took those before another.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    filled: usize,
    written: usize,
}

impl Outgoing {
    /// Append what `write` puts into room for `size` bytes; what room holds before is ignored.
    fn append<E>(&mut self, size: usize, write: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<(), E> {
        if self.written == self.filled {
            (self.written, self.filled) = (0, 0);
        }
        if self.bytes.len() < self.filled + size {
            self.bytes.resize(self.filled + size, 0);
        }
        self.filled += write(self.bytes.get_mut(self.filled..).unwrap_or_default())?;
        Ok(())
    }

    /// Append a message of the handshake, or an alert.
    fn encode(&mut self, mut message: EncodeTlsData<'_, ServerConnectionData>) {
        if let Err(EncodeError::InsufficientSize(error)) = message.encode(&mut []) {
            let _ = self.append(error.required_size, |room| message.encode(room)); // has room
        }
    }

    /// Append `data` in records; nothing makes none.
    fn seal(&mut self, data: &[u8], traffic: &mut WriteTraffic<'_, ServerConnectionData>) -> Result<(), EncryptError> {
        if data.is_empty() {
            return Ok(());
        }
        let size = data.len() + (data.len() / RECORD_BYTES + 1) * OVERHEAD_BYTES;
        self.append(size, |room| traffic.encrypt(data, room))
    }
}
