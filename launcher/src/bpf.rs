//! Compiles a seccomp policy into classic BPF, at build time.
//!
//! Owns: the shape of the program. A balanced tree over ranges of system call
//! numbers leads to leaves; a leaf is an answer or a chain of tests on arguments.
//! Depth matters more than length: the kernel walks the program once per call
//! number at installation (its bitmap of calls that are always allowed), and
//! on every call whose answer depends on an argument.
//!
//! Fails closed: a foreign architecture and every number not named in the policy
//! end in an errno. x32 calls (bit 30 set) are such numbers.
//!
//! Used by `build.rs` and by the unit tests only; the launcher holds the result.
//! Read next: `bpf/policy.rs` (the data), `steps/seccomp.rs` (installation).

#[path = "bpf/policy.rs"]
pub mod policy;
#[cfg(test)]
#[path = "bpf/policy_tests.rs"]
mod policy_tests;
#[cfg(test)]
#[path = "bpf/tests.rs"]
pub mod tests;

use policy::{Action, Call, Filter, Rule, Test};
use std::collections::HashMap;

/// One classic BPF instruction, `struct sock_filter` of linux/filter.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// BPF_LD | BPF_W | BPF_ABS: load a word of `struct seccomp_data`.
pub const LOAD: u16 = 0x20;
/// BPF_ALU | BPF_AND | BPF_K.
pub const AND: u16 = 0x54;
/// BPF_JMP | BPF_JA.
pub const JUMP: u16 = 0x05;
/// BPF_JMP | BPF_JEQ | BPF_K.
pub const IF_EQUAL: u16 = 0x15;
/// BPF_JMP | BPF_JGE | BPF_K.
pub const IF_AT_LEAST: u16 = 0x35;
/// BPF_JMP | BPF_JSET | BPF_K.
pub const IF_ANY_BIT: u16 = 0x45;
/// BPF_RET | BPF_K.
pub const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data` (linux/seccomp.h).
pub const OFFSET_NR: u32 = 0;
pub const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGS: u32 = 16;

/// The number a tracer writes to cancel a call. The kernel runs nothing for it,
/// so it is let through: an errno here would overwrite the tracer's result.
pub const NO_CALL: u32 = u32::MAX;

/// The kernel refuses longer programs (BPF_MAXINSNS).
const MAX_LEN: usize = 4096;
/// Longest distance of a conditional jump.
const REACH: usize = u8::MAX as usize;

/// Compiles one filter.
///
/// Returns: the instructions in order; the first is the entry.
pub fn compile(filter: &Filter) -> Result<Vec<Insn>, String> {
    let leaves = leaves(filter);
    let mut asm = Assembler::default();
    let tree = asm.tree(&leaves);
    let numbered = asm.load(OFFSET_NR, tree);
    let foreign = asm.answer(Action::ENOSYS);
    let native = asm.branch(IF_EQUAL, filter.audit_arch, numbered, foreign);
    asm.load(OFFSET_ARCH, native);
    asm.reversed.reverse();
    match asm.reversed.len() {
        n if n > MAX_LEN => Err(format!("filter {}: {n} instructions, at most {MAX_LEN}", filter.name)),
        _ => Ok(asm.reversed),
    }
}

/// What is done for one range of numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Leaf {
    rules: Vec<Rule>,
    otherwise: Action,
}

/// The whole number space as (first number, leaf), ascending; equal neighbours joined.
fn leaves(filter: &Filter) -> Vec<(u32, Leaf)> {
    let plain = |action| Leaf { rules: Vec::new(), otherwise: action };
    let unknown = plain(filter.otherwise);
    let mut out: Vec<(u32, Leaf)> = Vec::new();
    let mut add = |start: u32, leaf: Leaf| {
        if out.last().map(|(_, last)| last) != Some(&leaf) {
            out.push((start, leaf));
        }
    };
    let mut next = 0u32;
    for (&nr, Call { action, rules, .. }) in &filter.calls {
        if nr > next {
            add(next, unknown.clone());
        }
        add(nr, Leaf { rules: rules.clone(), otherwise: *action });
        next = nr + 1;
    }
    add(next, unknown);
    add(NO_CALL, plain(Action::ALLOW));
    out
}

/// Position of an instruction, counted from the end of the program.
type Label = usize;

/// Builds a program from its end to its start, so that the targets of every
/// jump (BPF jumps only forward) are known and equal blocks can be shared.
#[derive(Default)]
struct Assembler {
    reversed: Vec<Insn>,
    answers: HashMap<Action, Label>,
    blocks: HashMap<Leaf, Label>,
}

impl Assembler {
    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) -> Label {
        self.reversed.push(Insn { code, jt, jf, k });
        self.reversed.len() - 1
    }

    /// Instructions between the next one to be pushed and `target`.
    fn distance(&self, target: Label) -> usize {
        self.reversed.len() - 1 - target
    }

    /// A return; shared with an earlier one that conditional jumps still reach.
    fn answer(&mut self, action: Action) -> Label {
        match self.answers.get(&action) {
            // Half the reach: room for what is pushed before the jump to it.
            Some(&label) if self.distance(label) <= REACH / 2 => label,
            _ => {
                let label = self.push(RETURN, 0, 0, action.seccomp_value());
                self.answers.insert(action, label);
                label
            }
        }
    }

    /// Makes `target` the next instruction, or puts a jump to it there.
    fn follow(&mut self, target: Label) {
        let distance = self.distance(target);
        if distance != 0 {
            self.push(JUMP, 0, 0, distance as u32);
        }
    }

    fn load(&mut self, offset: u32, next: Label) -> Label {
        self.follow(next);
        self.push(LOAD, 0, 0, offset)
    }

    /// A label within `reach`: the target, or a jump to it.
    fn near(&mut self, target: Label, reach: usize) -> Label {
        match self.distance(target) {
            d if d <= reach => target,
            d => self.push(JUMP, 0, 0, d as u32),
        }
    }

    fn branch(&mut self, code: u16, k: u32, yes: Label, no: Label) -> Label {
        // One less: the second call may push a jump, which moves the first away.
        let yes = self.near(yes, REACH - 1);
        let no = self.near(no, REACH);
        let (jt, jf) = (self.distance(yes) as u8, self.distance(no) as u8);
        self.push(code, jt, jf, k)
    }

    fn tree(&mut self, leaves: &[(u32, Leaf)]) -> Label {
        if let [(_, leaf)] = leaves {
            return self.leaf(leaf);
        }
        let (low, high) = leaves.split_at(leaves.len() / 2);
        let yes = self.tree(high);
        let no = self.tree(low);
        self.branch(IF_AT_LEAST, high[0].0, yes, no)
    }

    fn leaf(&mut self, leaf: &Leaf) -> Label {
        if leaf.rules.is_empty() {
            return self.answer(leaf.otherwise);
        }
        if let Some(&label) = self.blocks.get(leaf) {
            return label;
        }
        let mut next = self.answer(leaf.otherwise);
        for rule in leaf.rules.iter().rev() {
            let mut holds = self.answer(rule.action);
            for test in rule.when.iter().rev() {
                holds = self.test(test, holds, next);
            }
            next = holds;
        }
        self.blocks.insert(leaf.clone(), next);
        next
    }

    fn test(&mut self, test: &Test, yes: Label, no: Label) -> Label {
        let low = OFFSET_ARGS + 8 * test.arg(); // both architectures are little-endian
        let high = low + 4;
        match test {
            Test::Any { any, .. } => {
                let check = self.branch(IF_ANY_BIT, *any, yes, no);
                self.load(low, check)
            }
            Test::Beyond { beyond, .. } => {
                let check = self.branch(IF_ANY_BIT, !beyond, yes, no);
                self.high_word_set(low, high, yes, check)
            }
            Test::Null { null, .. } => {
                let (zero, set) = if *null { (yes, no) } else { (no, yes) };
                let check = self.branch(IF_EQUAL, 0, zero, set);
                self.high_word_set(low, high, set, check)
            }
            Test::In { values, mask, .. } => self.listed(low, values, *mask, (yes, no)),
            Test::NotIn { values, mask, .. } => self.listed(low, values, *mask, (no, yes)),
        }
    }

    /// Goes to `set` if the high word is not 0, else loads the low word for `check`.
    fn high_word_set(&mut self, low: u32, high: u32, set: Label, check: Label) -> Label {
        let low_word = self.load(low, check);
        let branch = self.branch(IF_EQUAL, 0, low_word, set);
        self.load(high, branch)
    }

    fn listed(&mut self, low: u32, values: &[u32], mask: Option<u32>, (yes, no): (Label, Label)) -> Label {
        let first = values.iter().rev().fold(no, |next, &value| self.branch(IF_EQUAL, value, yes, next));
        let masked = match mask {
            None => first,
            Some(mask) => {
                self.follow(first);
                self.push(AND, 0, 0, mask)
            }
        };
        self.load(low, masked)
    }
}
