//! Run identifiers and time stamps.
//!
//! Owns: ULIDs (48 bits of milliseconds, 80 bits from the kernel's random
//! source) and RFC 3339 stamps in nanoseconds. Fails closed: without random
//! bytes there is no identifier, because two boxes that share a run id would
//! share a place in the audit log. Next: report.rs.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Crockford's alphabet: no I, L, O, U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const RANDOM_BYTES: usize = 10;
const TIME_BITS: u32 = 48;
const ULID_CHARS: usize = 26;
const SECONDS_PER_DAY: u64 = 86_400;

/// Makes a new ULID: 26 characters, sortable by time.
pub fn ulid() -> io::Result<String> {
    let mut random = [0u8; RANDOM_BYTES];
    fill_random(&mut random)?;
    Ok(encode(since_epoch().as_millis(), random))
}

/// What every identifier made longer than this ago is below.
pub fn earliest(age: Duration) -> String {
    encode(since_epoch().saturating_sub(age).as_millis(), [0; RANDOM_BYTES])
}

/// The current wall-clock time as `2026-11-29T17:23:45.012345678Z`.
pub fn now() -> String {
    stamp(since_epoch())
}

/// Formats a time since 1970-01-01T00:00:00Z as RFC 3339 with nanoseconds.
pub fn stamp(since: Duration) -> String {
    let seconds = since.as_secs();
    let (year, month, day) = civil(seconds / SECONDS_PER_DAY);
    let of_day = seconds % SECONDS_PER_DAY;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let nanos = since.subsec_nanos();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// Time since the epoch; a clock set before 1970 reads as the epoch itself.
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

fn encode(millis: u128, random: [u8; RANDOM_BYTES]) -> String {
    let time = millis & ((1u128 << TIME_BITS) - 1);
    let value = random.iter().fold(time, |acc, byte| (acc << 8) | u128::from(*byte));
    (0..ULID_CHARS).rev().map(|place| ALPHABET[(value >> (place * 5)) as usize & 31] as char).collect()
}

fn fill_random(buffer: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        // SAFETY: pointer and length describe a live, exclusively borrowed slice.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match got {
            n if n > 0 => done += n as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Days since the epoch to a Gregorian date.
/// Source: H. Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn known_instants_are_formatted_to_the_nanosecond() {
        let cases = [
            (0, 0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_399, 1, "2000-02-28T23:59:59.000000001Z"),
            (951_782_400, 0, "2000-02-29T00:00:00.000000000Z"),
            (1_709_251_199, 999_999_999, "2024-02-29T23:59:59.999999999Z"),
            (1_795_973_025, 12_345_678, "2026-11-29T17:23:45.012345678Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000000Z"),
        ];
        for (seconds, nanos, text) in cases {
            assert_eq!(stamp(Duration::new(seconds, nanos)), text);
        }
    }

    #[test]
    fn ulid_carries_time_first_then_randomness() {
        assert_eq!(encode(0, [0; 10]), "0".repeat(26));
        assert_eq!(encode((1 << 48) - 1, [255; 10]), format!("7{}", "Z".repeat(25)));
        // The example of the ULID specification: 1469918176385 is 01ARYZ6S41.
        assert!(encode(1_469_918_176_385, [0; 10]).starts_with("01ARYZ6S41"));
    }

    #[test]
    fn ulids_are_distinct_and_sort_by_time() {
        let made: Vec<String> = (0..2000).map(|_| ulid().unwrap()).collect();
        assert_eq!(made.iter().collect::<HashSet<_>>().len(), 2000);
        assert!(made.iter().all(|id| id.len() == 26));
        assert!(made[0][..10] <= made[1999][..10]);
    }
}
