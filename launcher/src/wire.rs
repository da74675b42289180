//! A refusal on its way from P1 or P2 to P0: one small JSON object on a pipe.

use serde::{Deserialize, Serialize};

use crate::report::{Refusal, CODES};

/// pipe(7): writes of up to PIPE_BUF bytes are whole.
const PIPE_BUF: usize = 4096;

#[derive(Serialize, Deserialize)]
struct Wire {
    code: String,
    object: String,
    errno: Option<i32>,
    detail: String,
    transient: bool,
}

impl Refusal {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut wire = Wire {
            code: self.code.to_string(),
            object: clip(&self.object),
            errno: self.errno,
            detail: clip(&self.detail),
            transient: self.transient,
        };
        let mut bytes = serde_json::to_vec(&wire).unwrap_or_default();
        if bytes.len() > PIPE_BUF {
            wire.detail.clear();
            wire.object.clear();
            bytes = serde_json::to_vec(&wire).unwrap_or_default();
        }
        bytes
    }

    /// None when the bytes are no refusal of this launcher.
    pub fn from_bytes(bytes: &[u8]) -> Option<Refusal> {
        // P1 and P2 may both have failed: the first word counts.
        let wire = serde_json::Deserializer::from_slice(bytes).into_iter::<Wire>().next()?.ok()?;
        let code = CODES.iter().find(|row| row.0 == wire.code)?.0;
        let refusal = Refusal::new(code, wire.object).detail(wire.detail).transient(wire.transient);
        Some(match wire.errno {
            Some(number) => refusal.number(number),
            None => refusal,
        })
    }

    pub fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// The error number of a call, where no io::Error is at hand.
    pub fn errno(self, number: i32) -> Refusal {
        self.io(&std::io::Error::from_raw_os_error(number))
    }
}

fn clip(text: &str) -> String {
    text.chars().take(512).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_survives_the_pipe_and_always_fits_it() {
        let long = "\u{1F600}".repeat(3000);
        let refusal = Refusal::new("mount_denied", long.clone()).detail(long).errno(libc::EACCES);
        let bytes = refusal.to_bytes();
        assert!(bytes.len() <= PIPE_BUF);
        let back = Refusal::from_bytes(&bytes).unwrap();
        assert_eq!((back.code, back.errno), ("mount_denied", Some(libc::EACCES)));
        let layers = Refusal::new("landlock_denied", "domain").errno(libc::E2BIG);
        assert_eq!(Refusal::from_bytes(&layers.to_bytes()), Some(layers));
        let twice = [bytes.clone(), Refusal::new("caps_denied", "x").to_bytes()].concat();
        assert_eq!(Refusal::from_bytes(&twice).unwrap().code, "mount_denied");
        assert!(Refusal::from_bytes(b"{\"code\":\"no_such\"}").is_none());
    }
}
