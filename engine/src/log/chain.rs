//! Reading back a part of the log that is known from its first record to its end: the records of past
//! commits, below the replay start.
//!
//! The end is a point that a superblock names, with the checksum of the record before it. Each header has the
//! checksum of its forerunner, so a chain that ends there is right from its first record on. Nothing is cut
//! here, and no verdict is given on what follows: whatever does not fit is an error.

use pleach_io::Device;

use super::error::{Invalid, ScanError};
use super::reader::LogReader;
use crate::format::position::{BLOCK, LogPos, Point, valid_segment_size};
use crate::format::record::{HEADER_LEN, Header, RecordView, body_checksum};

/// Shows each record from the one at `from` to the point `to`. What was shown counts only when this succeeds.
pub(crate) fn chain<D, E>(
    device: &D,
    database: u64,
    segment_size: u64,
    from: LogPos,
    to: Point,
    mut visit: impl FnMut(&RecordView<'_>) -> Result<(), E>,
) -> Result<(), E>
where
    D: Device,
    E: From<ScanError>,
{
    if !valid_segment_size(segment_size) || from > to.position {
        return Err(ScanError::Geometry { segment_size, position: from }.into());
    }
    let mut reader = LogReader::open(device, segment_size, from)?;
    let mut at = Point { position: from, checksum: 0 };
    let mut first = true;
    // Each turn comes closer to the end.
    while at.position < to.position {
        let next = at.position.align_up(BLOCK);
        let found = match next_record(&mut reader, database, at, first)? {
            Err(_) if next > at.position && next < to.position => {
                next_record(&mut reader, database, Point { position: next, ..at }, first)?
            }
            found => found,
        };
        let (header, checksum) =
            found.map_err(|invalid| ScanError::Past { position: at.position, invalid })?;
        let body = reader.read(header.position + HEADER_LEN as u64, header.body_len);
        let body = body.map_err(ScanError::Io)?.unwrap_or_default();
        visit(&RecordView { header, checksum, body })?;
        at = Point { position: header.end(), checksum };
        first = false;
    }
    if at == to || from == to.position {
        return Ok(());
    }
    Err(ScanError::Past { position: at.position, invalid: Invalid::Stale }.into())
}

type Verdict = Result<(Header, u64), Invalid>;

/// The record at a point; the first one may have any forerunner.
fn next_record<D: Device>(
    reader: &mut LogReader<D>,
    database: u64,
    at: Point,
    first: bool,
) -> Result<Verdict, ScanError> {
    let Some(bytes) = reader.read(at.position, HEADER_LEN as u64)? else {
        return Ok(Err(Invalid::NoSegment));
    };
    let Some(bytes) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(Err(Invalid::NoSegment)) };
    let Ok((header, checksum)) = Header::decode(bytes) else { return Ok(Err(Invalid::NoHeader)) };
    let follows = header.database == database
        && header.position == at.position
        && (first || header.previous == at.checksum);
    if !follows {
        return Ok(Err(Invalid::Stale));
    }
    let body = reader.read(at.position + HEADER_LEN as u64, header.body_len)?;
    Ok(match body.map(|body| body_checksum(database, [body])) {
        None => Err(Invalid::CutBody),
        Some(sum) if sum != header.body_checksum => Err(Invalid::TornBody),
        Some(_) => Ok((header, checksum)),
    })
}
