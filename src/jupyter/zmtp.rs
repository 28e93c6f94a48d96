//! ZMTP 3: the greeting, the READY command and the frame headers, for the gate and for the publisher
//! (<https://rfc.zeromq.org/spec/23/> and <https://rfc.zeromq.org/spec/37/>; mechanism NULL).
//!
//! Everything here reads what a stranger sent: lengths are checked before anything is kept, and nothing is answered with more
//! than a closed connection.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How long a client may take for greeting and READY. Front-ends probe ports with bare connects; those are not kept.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

const GREETING_LEN: usize = 64;
const SIGNATURE_LEN: usize = 10;
/// READY holds a socket type and an identity of at most 255 bytes.
const READY_LIMIT: u64 = 8 * 1024;
const IDENTITY_LIMIT: usize = 255;

const MORE: u8 = 0b001;
const LONG: u8 = 0b010;
const COMMAND: u8 = 0b100;

/// What a client said about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) socket_type: String,
    pub(super) identity: Bytes,
}

/// Our side of a handshake.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role {
    pub(super) socket_type: &'static str,
    /// The socket types that may talk to it.
    pub(super) accepts: &'static [&'static str],
    /// The minor version that the greeting offers.
    pub(super) minor: u8,
}

/// Greets a client and reads its READY. Ours is sent before its own is read: a client may wait for either.
pub(super) async fn handshake<S>(stream: &mut S, role: Role) -> io::Result<Peer>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let work = async {
        stream.write_all(&greeting(role.minor)).await?;
        read_greeting(stream).await?;
        let identity = Bytes::new();
        stream
            .write_all(&ready(role.socket_type, &identity))
            .await?;
        let peer = read_ready(stream).await?;
        if !role.accepts.contains(&peer.socket_type.as_str()) {
            return Err(invalid("this socket type cannot talk to ours"));
        }
        Ok(peer)
    };
    tokio::time::timeout(HANDSHAKE_LIMIT, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The 64 bytes that open a connection.
pub(super) fn greeting(minor: u8) -> [u8; GREETING_LEN] {
    let mut greeting = [0; GREETING_LEN];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = minor;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// Reads the other side's greeting, and gives up at the first byte that is none.
pub(super) async fn read_greeting(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut greeting = [0; GREETING_LEN];
    stream.read_exact(&mut greeting[..1]).await?;
    if greeting[0] != 0xff {
        return Err(invalid("no ZMTP greeting"));
    }
    stream.read_exact(&mut greeting[1..SIGNATURE_LEN]).await?;
    if greeting[9] & 1 == 0 {
        return Err(invalid("no ZMTP greeting"));
    }
    stream.read_exact(&mut greeting[SIGNATURE_LEN..]).await?;
    if greeting[10] < 3 {
        return Err(invalid("a ZMTP version before 3"));
    }
    let mechanism = &greeting[12..32];
    if !mechanism.starts_with(b"NULL") || mechanism[4..].iter().any(|byte| *byte != 0) {
        return Err(invalid("a security mechanism other than NULL"));
    }
    Ok(())
}

/// A READY command as a frame.
pub(super) fn ready(socket_type: &str, identity: &[u8]) -> Bytes {
    let mut body = BytesMut::new();
    body.put_slice(b"\x05READY");
    for (name, value) in [
        ("Socket-Type", socket_type.as_bytes()),
        ("Identity", identity),
    ] {
        // Both names are literals, both values are at most 255 bytes long.
        body.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
        body.put_slice(name.as_bytes());
        body.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        body.put_slice(value);
    }
    command(&body)
}

/// A command frame with this body.
pub(super) fn command(body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(body.len() + 9);
    put_header(&mut frame, COMMAND, body.len());
    frame.put_slice(body);
    frame.freeze()
}

/// The PONG that answers this command, if it is a PING: it brings back the context after the two bytes of time to live
/// (RFC 37).
pub(super) fn pong(command_body: &[u8]) -> Option<Bytes> {
    let ping = command_body.strip_prefix(b"\x04PING")?;
    let context = ping.get(2..).unwrap_or_default();
    Some(command(&[b"\x04PONG", context].concat()))
}

/// The frames of a message, encoded.
pub(super) fn message(frames: &[Bytes]) -> Bytes {
    let mut wire = BytesMut::with_capacity(wire_len(frames));
    for (index, frame) in frames.iter().enumerate() {
        let more = if index + 1 < frames.len() { MORE } else { 0 };
        put_header(&mut wire, more, frame.len());
        wire.put_slice(frame);
    }
    wire.freeze()
}

/// How many bytes the frames take on the wire.
pub(super) fn wire_len(frames: &[Bytes]) -> usize {
    frames
        .iter()
        .map(|frame| frame.len() + if frame.len() > 255 { 9 } else { 2 })
        .sum()
}

fn put_header(wire: &mut BytesMut, flags: u8, len: usize) {
    match u8::try_from(len) {
        Ok(len) => {
            wire.put_u8(flags);
            wire.put_u8(len);
        }
        Err(_) => {
            wire.put_u8(flags | LONG);
            wire.put_u64(len as u64);
        }
    }
}

async fn read_ready(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Peer> {
    let frame = read_frame(stream, READY_LIMIT).await?;
    if !frame.command {
        return Err(invalid("a message before READY"));
    }
    parse_ready(&frame.body).ok_or_else(|| invalid("no READY command"))
}

fn parse_ready(body: &Bytes) -> Option<Peer> {
    let mut rest = body.strip_prefix(b"\x05READY")?;
    let mut peer = Peer {
        socket_type: String::new(),
        identity: Bytes::new(),
    };
    while let Some((name_len, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(*name_len))?;
        let (value_len, after) = after.split_first_chunk::<4>()?;
        let value_len = usize::try_from(u32::from_be_bytes(*value_len)).ok()?;
        let (value, after) = after.split_at_checked(value_len)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            peer.socket_type = String::from_utf8_lossy(value).into_owned();
        } else if name.eq_ignore_ascii_case(b"Identity") && value.len() <= IDENTITY_LIMIT {
            peer.identity = Bytes::copy_from_slice(value);
        }
        rest = after;
    }
    Some(peer)
}

/// A whole frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) command: bool,
    pub(super) more: bool,
    pub(super) body: Bytes,
}

/// Reads one frame of at most `limit` bytes.
pub(super) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    limit: u64,
) -> io::Result<Frame> {
    let flags = stream.read_u8().await?;
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(invalid("reserved bits set in a frame header"));
    }
    let len = if flags & LONG == 0 {
        u64::from(stream.read_u8().await?)
    } else {
        stream.read_u64().await?
    };
    let len = usize::try_from(len)
        .ok()
        .filter(|len| *len as u64 <= limit)
        .ok_or_else(|| invalid("a frame is too large"))?;
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    Ok(Frame {
        command: flags & COMMAND != 0,
        more: flags & MORE != 0,
        body: body.into(),
    })
}

/// Follows the frames of one direction without keeping them.
#[derive(Debug)]
pub(super) struct FrameScanner {
    limits: Limits,
    state: State,
    /// What the unfinished message counts so far.
    weight: u64,
}

/// What one direction may announce.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of one frame.
    pub(super) frame: u64,
    /// Bytes of one message, each frame counted with [`FRAME_COST`] on top: frames without end would fill the memory as well.
    pub(super) message: u64,
}

impl Limits {
    /// For the direction that we fill ourselves.
    pub(super) const NONE: Self = Self {
        frame: u64::MAX,
        message: u64::MAX,
    };
}

const FRAME_COST: u64 = 64;

#[derive(Debug, Clone, Copy)]
enum State {
    Flags,
    Length { flags: u8, missing: u8, value: u64 },
    Body { flags: u8, missing: u64 },
}

/// A piece of one frame, from the front of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) len: usize,
    pub(super) command: bool,
    pub(super) ends_frame: bool,
    pub(super) ends_message: bool,
}

impl FrameScanner {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: State::Flags,
            weight: 0,
        }
    }

    /// Whether a command may be put in here: commands stand between messages.
    pub(super) fn between_messages(&self) -> bool {
        self.weight == 0 && matches!(self.state, State::Flags)
    }

    /// Reads on to the end of the current frame or of the input, whichever comes first.
    pub(super) fn span(&mut self, input: &[u8]) -> io::Result<Span> {
        let mut len = 0;
        loop {
            if let State::Body { flags, missing } = self.state {
                let here = usize::try_from(missing)
                    .map_or(input.len() - len, |missing| missing.min(input.len() - len));
                len += here;
                let missing = missing - here as u64;
                let command = flags & COMMAND != 0;
                if missing > 0 {
                    self.state = State::Body { flags, missing };
                    return Ok(Span::partial(len, command));
                }
                self.state = State::Flags;
                let ends_message = !command && flags & MORE == 0;
                if ends_message {
                    self.weight = 0;
                }
                return Ok(Span {
                    len,
                    command,
                    ends_frame: true,
                    ends_message,
                });
            }
            let Some(byte) = input.get(len).copied() else {
                return Ok(Span::partial(len, self.in_command()));
            };
            len += 1;
            self.header_byte(byte)?;
        }
    }

    fn header_byte(&mut self, byte: u8) -> io::Result<()> {
        self.state = match self.state {
            State::Flags if byte & !(MORE | LONG | COMMAND) != 0 => {
                return Err(invalid("reserved bits set in a frame header"));
            }
            State::Flags => State::Length {
                flags: byte,
                missing: if byte & LONG == 0 { 1 } else { 8 },
                value: 0,
            },
            State::Length {
                flags,
                missing,
                value,
            } => {
                let value = value << 8 | u64::from(byte);
                if missing > 1 {
                    State::Length {
                        flags,
                        missing: missing - 1,
                        value,
                    }
                } else {
                    self.check(flags, value)?;
                    State::Body {
                        flags,
                        missing: value,
                    }
                }
            }
            body @ State::Body { .. } => body,
        };
        Ok(())
    }

    fn check(&mut self, flags: u8, len: u64) -> io::Result<()> {
        if len > self.limits.frame {
            return Err(invalid("a frame is too large"));
        }
        if flags & COMMAND == 0 {
            self.weight = self.weight.saturating_add(len).saturating_add(FRAME_COST);
            if self.weight > self.limits.message {
                return Err(invalid("a message is too large"));
            }
        }
        Ok(())
    }

    fn in_command(&self) -> bool {
        match self.state {
            State::Flags => false,
            State::Length { flags, .. } | State::Body { flags, .. } => flags & COMMAND != 0,
        }
    }
}

impl Span {
    fn partial(len: usize, command: bool) -> Self {
        Self {
            len,
            command,
            ends_frame: false,
            ends_message: false,
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits {
        frame: 1000,
        message: 2000,
    };

    #[test]
    fn spans_cover_the_input_wherever_it_is_cut() {
        let mut wire = message(&[Bytes::from_static(b"id"), vec![7; 300].into()]).to_vec();
        let first = wire.len();
        wire.extend(command(b"\x04PING\0\0"));
        let second = wire.len();
        wire.extend(message(&[Bytes::new()]));
        for chunk in 1..=wire.len() {
            let mut scanner = FrameScanner::new(SMALL);
            let mut ends = Vec::new();
            let mut commands = 0;
            let mut at = 0;
            for mut piece in wire.chunks(chunk) {
                while !piece.is_empty() {
                    let span = scanner.span(piece).unwrap();
                    assert!(span.len > 0);
                    at += span.len;
                    commands += if span.command { span.len } else { 0 };
                    if span.ends_message {
                        ends.push(at);
                    }
                    piece = &piece[span.len..];
                }
            }
            assert_eq!(ends, [first, wire.len()], "cut every {chunk} bytes");
            assert_eq!(commands, second - first);
        }
    }

    #[test]
    fn an_announced_giant_is_refused_before_it_arrives() {
        let mut scanner = FrameScanner::new(SMALL);
        let mut header = vec![LONG];
        header.extend((1_u64 << 35).to_be_bytes());
        assert!(scanner.span(&header).is_err());
        let mut scanner = FrameScanner::new(SMALL);
        assert!(scanner.span(&[0xf0]).is_err(), "reserved bits");
    }

    #[test]
    fn a_message_of_endless_frames_is_refused() {
        let mut scanner = FrameScanner::new(SMALL);
        let refused = (0..100).any(|_| scanner.span(&[MORE, 0]).is_err());
        assert!(refused);
        let mut scanner = FrameScanner::new(SMALL);
        let accepted = (0..100).all(|_| scanner.span(&[0, 0]).is_ok());
        assert!(accepted, "many small messages are no large one");
    }

    #[test]
    fn ready_is_read_back_and_bent_ones_are_refused() {
        let wire = ready("DEALER", b"me");
        let peer = parse_ready(&wire.slice(2..)).unwrap();
        assert_eq!(
            (peer.socket_type.as_str(), &peer.identity[..]),
            ("DEALER", &b"me"[..])
        );
        for cut in 3..wire.len() {
            // Cut anywhere: either a READY with fewer properties or none, never a panic.
            let _ = parse_ready(&wire.slice(2..cut));
        }
        assert!(parse_ready(&Bytes::from_static(b"\x05READY\xff")).is_none());
        assert!(parse_ready(&Bytes::from_static(b"\x05READY\x01a\xff\xff\xff\xffx")).is_none());
    }

    #[tokio::test]
    async fn two_sides_shake_hands() {
        let (mut ours, mut theirs) = tokio::io::duplex(1024);
        let role = Role {
            socket_type: "ROUTER",
            accepts: &["DEALER"],
            minor: 0,
        };
        let client = async {
            theirs.write_all(&greeting(1)).await.unwrap();
            theirs.write_all(&ready("DEALER", b"x")).await.unwrap();
            read_greeting(&mut theirs).await.unwrap();
            read_ready(&mut theirs).await.unwrap()
        };
        let (peer, us) = tokio::join!(handshake(&mut ours, role), client);
        assert_eq!(peer.unwrap().identity, "x");
        assert_eq!(us.socket_type, "ROUTER");
    }
}
