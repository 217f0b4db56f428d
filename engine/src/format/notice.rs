//! What an open database tells those who look into its folder: which tasks make no progress, which pages
//! are set aside. The database itself is locked while it is open; `tools::notice` reads this file.
//!
//! ```text
//! file "notice", one page:  checksum 8 | magic 8 | bytes of the text 4 | text | zeros
//! ```
//!
//! The watchdog writes the file when there is something new to say, and blanks it when the database is
//! closed. It is never synced and nothing depends on it: a failed write is a warning, and bytes that make
//! no sense are no notice. The notice of a killed process is not read, because its lock is gone.

use pleach_io::{Disk, IoError, OpenMode, PAGE, PageBuf};
use twox_hash::XxHash3_64;

use super::bytes::{get, get_u32, get_u64, put};

/// Name of the file.
pub(crate) const FILE: &str = super::names::NOTICE;

const MAGIC: [u8; 8] = *b"PLEACHNO";
const AT_CHECKSUM: usize = 0;
const AT_MAGIC: usize = AT_CHECKSUM + 8;
const AT_LEN: usize = AT_MAGIC + 8;
const AT_TEXT: usize = AT_LEN + 4;

/// The notice of an open database.
pub(crate) struct Notice {
    /// What the file says.
    told: String,
}

impl Notice {
    /// What the file says may be that of a process which was killed: the first look blanks it then.
    pub(crate) fn new(device: &Disk) -> Self {
        Self { told: read(device).unwrap_or_default() }
    }

    /// Says this from now on; empty for nothing.
    pub(crate) fn tell(&mut self, device: &Disk, text: String) {
        if text == self.told {
            return;
        }
        let written = device
            .open(FILE, OpenMode::Write)
            .and_then(|file| device.write_at(&file, &encode(&text), 1, 0));
        if let Err(error) = written {
            tracing::warn!(%error, "what is the matter could not be written into the folder");
        }
        self.told = text;
    }
}

/// Makes the file, blank, its room taken.
pub(crate) fn create(device: &Disk) -> Result<(), IoError> {
    let file = device.open(FILE, OpenMode::CreateNew)?;
    device.write_at(&file, &encode(""), 1, 0)
}

/// What a folder's database says; `None` when that is nothing.
pub(crate) fn read(device: &Disk) -> Option<String> {
    let file = device.open(FILE, OpenMode::Read).ok()?;
    let mut buf = PageBuf::zeroed(1);
    device.read_at(&file, &mut buf, 0).ok()?;
    let page = buf.page(0);
    let good = get::<8>(page, AT_MAGIC) == MAGIC
        && XxHash3_64::oneshot(&page[AT_MAGIC..]) == get_u64(page, AT_CHECKSUM);
    let len = usize::try_from(get_u32(page, AT_LEN)).ok().filter(|_| good)?;
    let text = page.get(AT_TEXT..AT_TEXT.checked_add(len)?)?;
    let text = String::from_utf8_lossy(text).into_owned();
    (!text.is_empty()).then_some(text)
}

/// The page; a text that is too long loses its end.
fn encode(text: &str) -> PageBuf {
    let mut buf = PageBuf::zeroed(1);
    let page = buf.page_mut(0);
    let text = &text.as_bytes()[..text.len().min(PAGE - AT_TEXT)];
    put(page, AT_MAGIC, MAGIC);
    put(page, AT_LEN, u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
    page[AT_TEXT..AT_TEXT + text.len()].copy_from_slice(text);
    let checksum = XxHash3_64::oneshot(&page[AT_MAGIC..]);
    put(page, AT_CHECKSUM, checksum.to_le_bytes());
    buf
}

#[cfg(test)]
mod tests {
    use pleach_io::Device;
    use pleach_io::sim::{SimDisk, SimOptions};

    use super::*;

    #[test]
    fn a_notice_comes_back_whatever_its_length_and_no_changed_byte_does() {
        let disk = SimDisk::new(1, SimOptions::default());
        assert_eq!(read(&Disk::from(&disk)), None, "no file");
        create(&Disk::from(&disk)).expect("no faults");
        let mut notice = Notice::new(&Disk::from(&disk));
        for len in [1, 100, PAGE - AT_TEXT, PAGE, 3 * PAGE] {
            let text = "x".repeat(len);
            notice.tell(&Disk::from(&disk), text.clone());
            assert_eq!(read(&Disk::from(&disk)).as_deref(), Some(&text[..len.min(PAGE - AT_TEXT)]));
        }
        let file = disk.open(FILE, OpenMode::Write).expect("there");
        let whole = encode("a text");
        for at in 0..PAGE {
            let mut bad = PageBuf::zeroed(1);
            bad.copy_from_slice(&whole);
            bad[at] ^= 0x40;
            disk.write_at(&file, &bad, 1, 0).expect("no faults");
            assert_eq!(read(&Disk::from(&disk)), None, "byte {at}");
        }
        notice.tell(&Disk::from(&disk), String::new());
        assert_eq!(read(&Disk::from(&disk)), None);
        // Killed while it had something to tell: the next open does not repeat it.
        notice.tell(&Disk::from(&disk), "a task hangs".to_owned());
        assert!(read(&Disk::from(&disk)).is_some());
        Notice::new(&Disk::from(&disk)).tell(&Disk::from(&disk), String::new());
        assert_eq!(read(&Disk::from(&disk)), None);
    }
}
