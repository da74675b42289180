//! Tests of the compiler on the policies of both architectures, through a BPF interpreter:
//! the compiled program must answer as the plain reading of the data does.
//!
//! What the data itself must say is tested in `policy_tests.rs`.

use super::policy::{parse, Action, Filter, Numbers, Test};
use super::*;

const X86_64: u32 = 0xC000_003E;
const AARCH64: u32 = 0xC000_00B7;
const I386: u32 = 0x4000_0003;
const ARM: u32 = 0x4000_0028;

/// One filter of one architecture, compiled.
pub struct Subject {
    arch: &'static str,
    numbers: Numbers,
    pub filter: Filter,
    program: Vec<Insn>,
}

impl Subject {
    fn run(&self, arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        interpret(&self.program, arch, nr, &args)
    }

    #[track_caller]
    pub fn check(&self, name: &str, args: &[u64], expected: Action) {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let nr = self.numbers.get(name).unwrap();
        let got = self.run(self.filter.audit_arch, nr, all);
        assert_eq!(got, expected.seccomp_value(), "{} {}: {name}({args:x?})", self.arch, self.filter.name);
    }

    pub fn has(&self, name: &str) -> bool {
        self.numbers.get(name).is_ok()
    }
}

fn data(arch: &str) -> (&'static str, &'static str) {
    match arch {
        "x86_64" => (include_str!("../../seccomp/x86_64.toml"), include_str!("../../seccomp/numbers-x86_64.toml")),
        _ => (include_str!("../../seccomp/aarch64.toml"), include_str!("../../seccomp/numbers-aarch64.toml")),
    }
}

/// Every filter of both architectures.
pub fn subjects() -> Vec<Subject> {
    let mut out = Vec::new();
    for arch in ["x86_64", "aarch64"] {
        let (policy, numbers) = data(arch);
        for filter in parse(policy, &Numbers::parse(numbers).unwrap()).unwrap() {
            let program = compile(&filter).unwrap();
            out.push(Subject { arch, numbers: Numbers::parse(numbers).unwrap(), filter, program });
        }
    }
    out
}

/// The filters of a command, `default` and `default-root`, of both architectures.
pub fn commands() -> impl Iterator<Item = Subject> {
    subjects().into_iter().filter(|s| s.filter.name.starts_with("default"))
}

/// The kernel's semantics of the instructions that the compiler emits.
fn interpret(program: &[Insn], arch: u32, nr: u32, args: &[u64; 6]) -> u32 {
    let mut words = vec![nr, arch, 0x1234, 0];
    words.extend(args.iter().flat_map(|a| [*a as u32, (*a >> 32) as u32]));
    let (mut pc, mut acc) = (0usize, 0u32);
    loop {
        let Insn { code, jt, jf, k } = program[pc];
        pc += 1;
        let branch = |taken| usize::from(if taken { jt } else { jf });
        match code {
            LOAD => acc = words[k as usize / 4],
            AND => acc &= k,
            JUMP => pc += k as usize,
            IF_EQUAL => pc += branch(acc == k),
            IF_AT_LEAST => pc += branch(acc >= k),
            IF_ANY_BIT => pc += branch(acc & k != 0),
            RETURN => return k,
            other => panic!("instruction {other:#x} at {}", pc - 1),
        }
    }
}

/// Values around everything that the tests of the policy look at.
fn samples(filter: &Filter) -> Vec<u64> {
    let mut out = vec![0, 1, 2, 0o777, 0o4755, 0o2755, 0o1777, 1 << 31, 1 << 32, u64::MAX, u64::from(u32::MAX)];
    let tests = filter.calls.values().flat_map(|call| &call.rules).flat_map(|rule| &rule.when);
    for test in tests {
        match test {
            Test::Any { any: bits, .. } | Test::Beyond { beyond: bits, .. } => {
                out.extend((0..32).map(|b| 1u64 << b).filter(|b| u64::from(*bits) & b != 0));
                out.extend([u64::from(*bits), u64::from(!*bits)]);
            }
            Test::In { values, .. } | Test::NotIn { values, .. } => {
                out.extend(
                    values.iter().flat_map(|v| [*v, v.wrapping_sub(1), v.wrapping_add(1), v | 0x80800]).map(u64::from),
                );
            }
            Test::Null { .. } => {}
        }
    }
    out.sort_unstable();
    out.dedup();
    out.extend(out.clone().iter().map(|v| v | 0xdead_beef_0000_0000));
    out
}

#[test]
fn the_tree_answers_as_the_plain_reading_for_every_number_and_sampled_arguments() {
    for s in subjects() {
        let values = samples(&s.filter);
        let edges =
            [0x3fff_ffff, 0x4000_0000, 0x4000_0001, 0x4000_03ff, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX];
        for nr in (0..=1000).chain(edges) {
            for (i, &first) in values.iter().enumerate() {
                // Neighbouring samples on the other arguments: pairs differ from round to round.
                let at = |step: usize| values[(i * step + step) % values.len()];
                for args in
                    [[first; 6], [first, at(3), at(5), at(7), at(11), at(13)], [at(7), first, at(3), first, 0, 0]]
                {
                    let expected = s.filter.answer(s.filter.audit_arch, nr, &args).seccomp_value();
                    assert_eq!(
                        s.run(s.filter.audit_arch, nr, args),
                        expected,
                        "{} {} {nr} {args:x?}",
                        s.arch,
                        s.filter.name
                    );
                }
            }
        }
    }
}

#[test]
fn every_combination_of_samples_on_the_arguments_of_a_rule_answers_as_the_plain_reading() {
    for s in subjects() {
        let values = samples(&s.filter);
        for (&nr, call) in s.filter.calls.iter().filter(|(_, call)| !call.rules.is_empty()) {
            let mut used: Vec<u32> = call.rules.iter().flat_map(|r| &r.when).map(Test::arg).collect();
            used.sort_unstable();
            used.dedup();
            let stride = if used.len() > 2 { 5 } else { 1 };
            let axis = |n: usize| values.iter().step_by(if n < used.len() { stride } else { values.len() });
            for (a, b, c) in axis(0).flat_map(|a| axis(1).flat_map(move |b| axis(2).map(move |c| (*a, *b, *c)))) {
                let mut args = [0; 6];
                for (arg, value) in used.iter().zip([a, b, c]) {
                    args[*arg as usize] = value;
                }
                let expected = s.filter.answer(s.filter.audit_arch, nr, &args).seccomp_value();
                assert_eq!(
                    s.run(s.filter.audit_arch, nr, args),
                    expected,
                    "{} {} {nr} {args:x?}",
                    s.arch,
                    s.filter.name
                );
            }
        }
    }
}

#[test]
fn numbers_next_to_the_known_ones_and_far_away_are_unknown() {
    for s in subjects() {
        let known: Vec<u32> = s.numbers.iter().map(|(_, nr)| nr).collect();
        let near = known.iter().flat_map(|nr| [nr.wrapping_sub(1), nr + 1]).filter(|nr| *nr != NO_CALL);
        let far = [500, 1000, 4096, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1];
        for nr in near.chain(far).filter(|nr| !known.contains(nr)) {
            let expected = s.filter.otherwise.seccomp_value();
            assert_eq!(s.run(s.filter.audit_arch, nr, [0; 6]), expected, "{} {} {nr}", s.arch, s.filter.name);
        }
    }
}

#[test]
fn foreign_architectures_are_answered_with_enosys_whatever_the_call() {
    for s in subjects() {
        for arch in [X86_64, AARCH64, I386, ARM, 0, u32::MAX].into_iter().filter(|a| *a != s.filter.audit_arch) {
            for nr in (0..500).chain([NO_CALL]) {
                assert_eq!(
                    s.run(arch, nr, [0; 6]),
                    Action::ENOSYS.seccomp_value(),
                    "{} {} {arch:x} {nr}",
                    s.arch,
                    s.filter.name
                );
            }
        }
    }
}

#[test]
fn x32_calls_are_unknown_and_a_cancelled_call_is_left_to_the_kernel() {
    for s in commands() {
        for nr in 0..600 {
            assert_eq!(s.run(s.filter.audit_arch, nr | 0x4000_0000, [0; 6]), Action::ENOSYS.seccomp_value());
        }
        assert_eq!(s.run(s.filter.audit_arch, NO_CALL, [0; 6]), Action::ALLOW.seccomp_value());
    }
}

#[test]
fn both_architectures_decide_alike() {
    let all = subjects();
    let (x86, arm): (Vec<&Subject>, Vec<&Subject>) = all.iter().partition(|s| s.arch == "x86_64");
    assert_eq!((x86[0].filter.audit_arch, arm[0].filter.audit_arch), (X86_64, AARCH64));
    for (a, b) in x86.into_iter().zip(arm) {
        assert_eq!((&a.filter.name, a.filter.otherwise), (&b.filter.name, b.filter.otherwise));
        for (name, nr) in a.numbers.iter().filter(|(name, _)| b.has(name)) {
            let ours = a.filter.calls.get(&nr).map(|c| (c.action, &c.rules));
            let theirs = b.filter.calls.get(&b.numbers.get(name).unwrap()).map(|c| (c.action, &c.rules));
            assert_eq!(ours, theirs, "{name} in {}", a.filter.name);
        }
    }
}

#[test]
fn programs_are_what_the_kernel_accepts_short_and_shallow() {
    for s in subjects() {
        let program = &s.program;
        assert!(program.len() <= 320, "{} {}: {}", s.arch, s.filter.name, program.len());
        for (at, insn) in program.iter().enumerate() {
            let next = at + 1;
            match insn.code {
                RETURN => {}
                JUMP => assert!(next + (insn.k as usize) < program.len()),
                LOAD => assert!(insn.k < 64 && insn.k % 4 == 0 && next < program.len()),
                _ => assert!(next + usize::from(insn.jt.max(insn.jf)) < program.len()),
            }
        }
        assert_eq!(program.last().unwrap().code, RETURN);
        let deepest = (0..500).map(|nr| steps(program, s.filter.audit_arch, nr)).max().unwrap();
        assert!(deepest <= 28, "{} {}: {deepest}", s.arch, s.filter.name);
    }
}

/// Instructions executed for a call with all arguments 0.
fn steps(program: &[Insn], arch: u32, nr: u32) -> usize {
    let mut count = 1;
    let mut pc = 0;
    let mut acc = 0;
    while program[pc].code != RETURN {
        let Insn { code, jt, jf, k } = program[pc];
        let taken = match code {
            LOAD => {
                acc = [nr, arch].get(k as usize / 4).copied().unwrap_or(0);
                false
            }
            IF_EQUAL => acc == k,
            IF_AT_LEAST => acc >= k,
            IF_ANY_BIT => acc & k != 0,
            _ => false,
        };
        pc += 1 + if code == JUMP { k as usize } else { usize::from(if taken { jt } else { jf }) };
        count += 1;
    }
    count
}

#[test]
fn faults_in_the_data_stop_the_build() {
    let (policy, numbers) = data("x86_64");
    let numbers = Numbers::parse(numbers).unwrap();
    let fault = |from: &str, to: &str| {
        let changed = policy.replacen(from, to, 1);
        assert_ne!(policy, changed, "{from:?} is not in the data");
        parse(&changed, &numbers).unwrap_err()
    };
    assert!(fault("\"read\", ", "").contains("read is not decided"));
    assert!(fault("\"read\", ", "\"read\", \"write\", ").contains("write is decided twice"));
    assert!(fault("\"read\", ", "\"read\", \"raed\", ").contains("raed: no such call"));
    assert!(fault("otherwise = \"ENOSYS\"", "otherwise = \"KILL\"").contains("unknown action"));
    assert!(fault("any = 0x7E020000", "any = 0").contains("cannot hold"));
    assert!(fault("arg = 0, any = 0x7E020000", "arg = 6, any = 0x7E020000").contains("cannot hold"));
    assert!(fault("calls = [\"clone\"]", "calls = [\"clone3\"]").contains("not an allowed call"));
    assert!(fault("filters = [\"init\"]", "filters = [\"nit\"]").contains("no filter \"nit\""));
    assert!(fault("stockade.seccomp.v1", "stockade.seccomp.v2").contains("schema"));
    assert!(fault("why = \"randomness\"", "why = \"\"").contains("no reason"));
    assert!(fault("when = [{ arg = 0, beyond", "when = [{ arg = 0, behind").contains("did not match"));
    assert!(
        Numbers::parse("[numbers]\na = 1\nb = 1\n[numbers_without_libc]\n").is_err_and(|e| e.contains("given twice"))
    );
}
