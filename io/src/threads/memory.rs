//! Memory of the process: how much is resident, and giving back what the allocator keeps.

/// Gives free memory of the allocator back, if more than `above` bytes are resident; see
/// [`Runtime::trim_memory`](crate::Runtime::trim_memory). With another allocator than that of the C library
/// there is nothing to give back, and little is done.
pub(super) fn trim(above: u64) -> Option<u64> {
    let before = resident()?;
    if before <= above || !give_back() {
        return None;
    }
    Some(before.saturating_sub(resident()?))
}

/// Resident bytes of the process; `None` where the system does not say.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "a call of the C library")]
fn give_back() -> bool {
    // SAFETY: it takes the allocator's own locks and touches free memory alone.
    unsafe { libc::malloc_trim(0) };
    true
}

/// Other C libraries have no such call.
#[cfg(not(target_env = "gnu"))]
fn give_back() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_while_little_is_resident() {
        assert!(resident().is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(trim(u64::MAX), None);
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn memory_between_blocks_that_live_goes_back() {
        // Too small for mappings of their own, and every 32nd stays, so that the heap's end cannot move.
        let mut blocks: Vec<Option<Box<[u8]>>> =
            (0..2048).map(|_| Some(vec![1; 32 << 10].into_boxed_slice())).collect();
        for (at, block) in blocks.iter_mut().enumerate() {
            if at % 32 != 0 {
                *block = None;
            }
        }
        let given = trim(0).expect("it is above 0");
        assert!(given > 32 << 20, "{given} of 62 MiB");
        assert!(blocks.iter().flatten().all(|block| block[7] == 1), "what lives is as it was");
    }
}
