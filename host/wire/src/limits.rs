//! Every bound on what a stranger may send, in one place, each with its reason.
//!
//! A limit that is reached is an error with a name, never a panic and never a silent cut.

/// Version of the frame header and of the protocol it carries; a change that breaks a peer raises it.
pub const PROTOCOL_VERSION: u8 = 3;
/// Version of the frame header's form. It changes with that form alone, so that sides whose protocol versions differ can
/// still read each other's refusals.
pub const FRAME_VERSION: u8 = 1;

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 16;

/// Largest WebSocket message. One message is what a lane of higher rank may have to wait for, and what a relay buffers.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Largest frame payload: one frame must fit into one message.
pub const MAX_FRAME_PAYLOAD_BYTES: usize = MAX_MESSAGE_BYTES - HEADER_BYTES;

/// Largest payload of a bulk frame: a dispatch frame never waits behind more than this at the sender.
pub const MAX_BULK_PAYLOAD_BYTES: usize = 16 * 1024;

/// Bytes up to which small frames are packed into one message. Past it another message starts, so that a frame of a
/// higher lane need not wait for a full message.
pub const PACK_TARGET_BYTES: usize = 16 * 1024;

/// Largest payload put together from several frames on the dispatch lane: 512 rows of 8 picks, each answered
/// with 3,072 f32, are 48 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;

/// Largest payload of the control lane. Assignments are the longest; more experts than fit go into a second message.
pub const MAX_CONTROL_PAYLOAD_BYTES: usize = 1024 * 1024;

/// Largest payload between an end and the hub of a kind that has no room of its own: two sentences and what stands around
/// them. What a peer leaves unfinished the other side holds, so no kind has more room than its reader takes.
pub const MAX_HUB_PAYLOAD_BYTES: usize = 4 * 1024;

/// Largest `hello`: a ticket, all plugins and formats, and what stands around them.
pub const MAX_HELLO_BYTES: usize = 8 * 1024;

/// Largest `receipt`, and `countersign` of a backbone: a text, the calls that are left out, and signatures.
pub const MAX_RECEIPT_BYTES: usize = MAX_NOTE_BYTES + 8 * MAX_EXCLUDED_CALLS + 1024;

/// Largest `report`: a sentence, evidence, and what stands around them.
pub const MAX_REPORT_BYTES: usize = MAX_EVIDENCE_BYTES + 2 * 1024;

/// Streams on which a payload may be incomplete at one time, per link. Calls in flight are bounded by what waves and
/// hedging need, tens; blobs by the disk.
pub const MAX_OPEN_STREAMS: usize = 256;

/// Memory for incomplete payloads, per link: one full payload and the beginnings of others.
pub const MAX_ASSEMBLY_BYTES: usize = 96 * 1024 * 1024;

/// Bytes (headers included) that a sender may have outstanding on the dispatch lane before the receiver consumed any.
/// Must exceed the frames of one full payload, or a payload could never be completed.
pub const DISPATCH_WINDOW_BYTES: u64 = 128 * 1024 * 1024;

/// The same for the bulk lane, at first: known to both sides without a message, so it is part of the protocol. A receiver
/// that thinks it too much takes it back by granting less than it consumed.
pub const BULK_WINDOW_BYTES: u64 = 256 * 1024;

/// Least window of a bulk receiver: three full frames, so that one is on the way while one is taken and one is granted.
pub const MIN_BULK_WINDOW_BYTES: u64 = 3 * (HEADER_BYTES + MAX_BULK_PAYLOAD_BYTES) as u64;

/// Window of a bulk receiver before it knows the link: four full frames, a tenth of a second of 5 Mbit/s.
pub const START_BULK_WINDOW_BYTES: u64 = 4 * (HEADER_BYTES + MAX_BULK_PAYLOAD_BYTES) as u64;

/// Largest window of a bulk receiver: 600 Mbit/s at 100 ms; also the memory for chunks that nobody has taken yet.
pub const MAX_BULK_WINDOW_BYTES: u64 = 8 * 1024 * 1024;

/// Most credit that a sender may ever hold on one lane; a grant beyond it is an error, not a larger number.
pub const MAX_CREDIT_BYTES: u64 = 1 << 30;

/// Control payloads, in bytes, that may wait for the application of a receiving end. Control has no credit, because
/// credit travels on it; this bound replaces it.
pub const MAX_CONTROL_BACKLOG_BYTES: usize = 4 * 1024 * 1024;

/// Bytes that may wait in a sending end's control queue before sending fails.
pub const MAX_CONTROL_QUEUE_BYTES: usize = 4 * 1024 * 1024;

/// Bytes that may wait in a sending end's dispatch queue: two full payloads.
pub const MAX_DISPATCH_QUEUE_BYTES: usize = 2 * MAX_PAYLOAD_BYTES;

/// Bytes that may wait in a sending end's bulk queue. Small: bulk is read from disk as credit arrives.
pub const MAX_BULK_QUEUE_BYTES: usize = 256 * 1024;

/// Messages, in bytes, that one side of a link keeps so that it can send them again on another connection, per link: those of
/// a full bulk window ([`MAX_BULK_WINDOW_BYTES`], and what keeping them takes), and 1.9 MiB of all else that is on its way.
/// Beyond it the oldest are given up, and with them what a cut at that moment would have to go on with.
pub const MAX_REPLAY_BYTES: usize = 10 * 1024 * 1024;

/// Bytes that came on a link that can be resumed after which the other side is told: one message of the largest size.
pub const ACK_AFTER_BYTES: usize = 64 * 1024;

/// Largest call number of a session: the stream number is twice the call's.
pub const MAX_CALL_ID: u64 = (u32::MAX / 2) as u64;

/// Rows of one call.
pub const MAX_CALL_ROWS: u32 = 16 * 1024;

/// Experts of one call.
pub const MAX_CALL_EXPERTS: u16 = 4096;

/// Row requests (sum over experts of their row counts) of one call.
pub const MAX_CALL_REQUESTS: usize = 512 * 1024;

/// Columns of a row: the widest hidden vector.
pub const MAX_COLUMNS: usize = 64 * 1024;

/// Experts named by one `assign`, `release` or `have`; more go into another message.
pub const MAX_EXPERTS_PER_MESSAGE: usize = 16 * 1024;

/// Largest blob: one expert of any model.
pub const MAX_BLOB_BYTES: u64 = 1 << 30;

/// Data bytes of one chunk: what a bulk frame holds beside the chunk's own head.
pub const MAX_CHUNK_DATA_BYTES: usize = MAX_BULK_PAYLOAD_BYTES - 9;

/// Streams named by one `cancel`.
pub const MAX_CANCELS: usize = 1024;

/// Network name, in bytes.
pub const MAX_NETWORK_BYTES: usize = 64;

/// A ticket, in bytes before base64. In text it stays well below an edge's 8 KiB for all request headers.
pub const MAX_TICKET_BYTES: usize = 4096;

/// Plugins or publishers that one ticket names.
pub const MAX_TICKET_ALLOWED: usize = 48;

/// Longest life of a ticket: a year. Longer ones are refused when they are made and when they are read.
pub const MAX_TICKET_SECONDS: u64 = 366 * 24 * 3600;

/// How far two clocks may differ when issue and expiry of a ticket are checked.
pub const CLOCK_SKEW_SECONDS: u64 = 120;

/// Plugins named in a `hello`.
pub const MAX_OFFERED_PLUGINS: usize = 64;

/// Tensor formats named in a `hello`.
pub const MAX_OFFERED_FORMATS: usize = 64;

/// A sentence in a refusal or report, in bytes.
pub const MAX_SENTENCE_BYTES: usize = 1024;

/// Text of a receipt or of a note with its signatures, in bytes; far above what the grammar can produce.
pub const MAX_NOTE_BYTES: usize = 16 * 1024;

/// Calls excluded from one receipt.
pub const MAX_EXCLUDED_CALLS: usize = 64 * 1024;

/// Evidence attached to a report, in bytes.
pub const MAX_EVIDENCE_BYTES: usize = 256 * 1024;

/// Calls whose bytes the hub counts at one time; must exceed what both ends may have open.
pub const MAX_METERED_CALLS: usize = 4096;
