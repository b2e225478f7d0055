//! The tar of a package: an OCI image layout in one canonical form. ustar headers with fixed mode, owner and time, plain files only, in a
//! fixed order, zero padding, two zero blocks at the end and nothing after them.
//!
//! Reading accepts that form alone, so two different packages never unpack to the same files and no byte of a package
//! is without meaning. `tar tf` and `tar xf` read it.

use std::cmp::Ordering;

use crate::error::PluginError;
use crate::identity::digest_from_hex;
use crate::limits::{
    MAX_BLOB_BYTES, MAX_ENTRIES, MAX_FILE_NAME_BYTES, MAX_INDEX_BYTES, MAX_OCI_LAYOUT_BYTES,
    MAX_PACKAGE_BYTES,
};

/// The file that says of which format a layout is.
pub const OCI_LAYOUT: &str = "oci-layout";
/// The file that names a layout's manifests.
pub const INDEX: &str = "index.json";
/// The folder of blobs, each called by its digest's 64 digits.
pub const BLOBS: &str = "blobs/sha256/";

const BLOCK: usize = 512;
const NAME: std::ops::Range<usize> = 0..100;
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const KIND: usize = 156;

/// One file: name and content.
pub type File<'a> = (String, &'a [u8]);

/// Writes `files`, which must be in canonical order with names and sizes within limits, as a tar.
pub fn write(files: &[File<'_>]) -> Vec<u8> {
    let mut archive = Vec::with_capacity(files.iter().map(|(_, bytes)| bytes.len() + 2 * BLOCK).sum());
    for (name, bytes) in files {
        archive.extend_from_slice(&header(name, bytes.len() as u64));
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

/// Reads the files of a package; contents are not looked at.
pub fn read(package: &[u8]) -> Result<Vec<File<'_>>, PluginError> {
    if package.len() > MAX_PACKAGE_BYTES {
        return Err(PluginError::PackageTooLarge { bytes: package.len(), limit: MAX_PACKAGE_BYTES });
    }
    let mut files: Vec<File<'_>> = Vec::new();
    let mut offset = 0;
    loop {
        let block = block(package, offset)?;
        if block.iter().all(|&byte| byte == 0) {
            break;
        }
        let (name, size) = read_header(block, offset)?;
        if let Some((last, _)) = files.last() {
            match order(last, &name) {
                _ if files.iter().any(|(seen, _)| *seen == name) => {
                    return Err(PluginError::DuplicateFile { name });
                }
                Ordering::Less => {}
                _ => return Err(PluginError::OutOfOrder { name }),
            }
        }
        if files.len() == MAX_ENTRIES {
            return Err(PluginError::TooManyEntries { limit: MAX_ENTRIES });
        }
        let start = offset + BLOCK;
        let bytes =
            package.get(start..start + size).ok_or(PluginError::Truncated { offset: package.len() })?;
        offset = (start + size).next_multiple_of(BLOCK);
        let padding =
            package.get(start + size..offset).ok_or(PluginError::Truncated { offset: package.len() })?;
        only_zeros(padding, start + size)?;
        files.push((name, bytes));
    }
    let end =
        package.get(offset..offset + 2 * BLOCK).ok_or(PluginError::Truncated { offset: package.len() })?;
    only_zeros(end, offset)?;
    if package.len() > offset + 2 * BLOCK {
        return Err(PluginError::StrayBytes { offset: offset + 2 * BLOCK });
    }
    Ok(files)
}

/// The most bytes that the entry `name` may have; an error if a layout has no such entry.
fn size_limit(name: &str) -> Result<usize, PluginError> {
    match name {
        OCI_LAYOUT => Ok(MAX_OCI_LAYOUT_BYTES),
        INDEX => Ok(MAX_INDEX_BYTES),
        _ if name.strip_prefix(BLOBS).is_some_and(|digest| digest_from_hex(digest).is_some()) => {
            Ok(MAX_BLOB_BYTES)
        }
        _ => Err(PluginError::UnexpectedEntry { name: name.to_owned() }),
    }
}

fn block(package: &[u8], offset: usize) -> Result<&[u8; BLOCK], PluginError> {
    package
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(PluginError::Truncated { offset: package.len() })
}

fn read_header(block: &[u8; BLOCK], offset: usize) -> Result<(String, usize), PluginError> {
    let name = &block[NAME];
    let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())];
    let name = String::from_utf8_lossy(name).into_owned();
    let kind = match block[KIND] {
        b'0' => None,
        b'1' => Some("a hard link"),
        b'2' => Some("a symbolic link"),
        b'3' | b'4' => Some("a device"),
        b'5' => Some("a folder"),
        b'6' => Some("a pipe"),
        b'L' | b'K' | b'x' | b'g' => Some("an extension record"),
        _ => Some("of an unknown kind"),
    };
    if let Some(kind) = kind {
        return Err(PluginError::NotAPlainFile { name, kind });
    }
    if !is_plain_path(&name) {
        return Err(PluginError::UnsafePath { name });
    }
    let limit = size_limit(&name)?;
    let digits = &block[SIZE][..11];
    if let Some(index) = digits.iter().position(|byte| !(b'0'..=b'7').contains(byte)) {
        return Err(PluginError::HeaderNotCanonical { offset: offset + SIZE.start + index });
    }
    let bytes = digits.iter().fold(0u64, |size, digit| size << 3 | u64::from(digit - b'0'));
    let Some(size) = usize::try_from(bytes).ok().filter(|&size| size <= limit) else {
        return Err(PluginError::FileTooLarge { name, bytes, limit });
    };
    let expected = header(&name, bytes);
    match block.iter().zip(&expected).position(|(found, expected)| found != expected) {
        Some(index) => Err(PluginError::HeaderNotCanonical { offset: offset + index }),
        None => Ok((name, size)),
    }
}

/// Relative, forward slashes, no empty, `.` or `..` part, no byte that any file system treats specially.
fn is_plain_path(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/');
    name.len() <= MAX_FILE_NAME_BYTES
        && name.bytes().all(plain)
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The canonical header: mode 0644, owner 0, time 0, plain file.
fn header(name: &str, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |start: usize, bytes: &[u8]| block[start..start + bytes.len()].copy_from_slice(bytes);
    put(NAME.start, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(SIZE.start, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(CHECKSUM.start, b"        ");
    put(KIND, b"0");
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// `oci-layout`, `index.json`, then blobs by name.
fn order(a: &str, b: &str) -> Ordering {
    let rank = |name: &str| [OCI_LAYOUT, INDEX].iter().position(|known| *known == name).unwrap_or(2);
    rank(a).cmp(&rank(b)).then_with(|| a.cmp(b))
}

fn only_zeros(bytes: &[u8], offset: usize) -> Result<(), PluginError> {
    match bytes.iter().position(|&byte| byte != 0) {
        Some(index) => Err(PluginError::StrayBytes { offset: offset + index }),
        None => Ok(()),
    }
}
