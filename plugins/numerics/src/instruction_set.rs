//! Which instructions an implementation may use. A value of [`InstructionSet`] is the proof that this machine has them,
//! which is what makes the calls into `#[target_feature]` code sound.

/// A set of instructions that this machine is known to have. Every set gives the same bits; they differ in speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstructionSet(pub(crate) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Scalar,
    /// AVX2 and F16C. Made by `detect` alone, after the processor and the operating system said so.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2, F16C, and of AVX-512 F, BW, VL and VNNI. Made by `detect` alone, as above.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON, which every aarch64 processor has.
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon,
    /// simd128 with the two relaxed integer dots. A WASM module is validated as a whole, so that code which was
    /// compiled with the features can only run where they exist.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd"))]
    Simd128,
}

impl InstructionSet {
    /// The scalar reference, which every machine has.
    pub const SCALAR: InstructionSet = InstructionSet(Kind::Scalar);

    /// The fastest set of this machine. Asks the processor on the first call and remembers the answer.
    pub fn detect() -> InstructionSet {
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd"))]
        return InstructionSet(Kind::Simd128);
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        return InstructionSet(Kind::Neon);
        #[cfg(target_arch = "x86_64")]
        match x86::best() {
            x86::Best::Avx512 => return InstructionSet(Kind::Avx512),
            x86::Best::Avx2 => return InstructionSet(Kind::Avx2),
            x86::Best::Neither => {}
        }
        #[allow(unreachable_code, reason = "aarch64 and a WASM build with the features have answered above")]
        InstructionSet::SCALAR
    }

    /// Every set of this machine, the scalar reference first: what a differential test runs through.
    pub fn available() -> impl Iterator<Item = InstructionSet> {
        let best = InstructionSet::detect();
        let between = match best.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => Some(InstructionSet(Kind::Avx2)),
            _ => None,
        };
        let vectors = (best != InstructionSet::SCALAR).then_some(best);
        [Some(InstructionSet::SCALAR), between, vectors].into_iter().flatten()
    }

    /// `scalar`, `avx2`, `avx512`, `neon` or `simd128`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Kind::Neon => "neon",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128", target_feature = "relaxed-simd"))]
            Kind::Simd128 => "simd128",
        }
    }
}

impl core::fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! `is_x86_feature_detected!` lives in std; this crate has none, so it asks CPUID itself.
    use core::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max, _xgetbv};
    use core::sync::atomic::{AtomicU8, Ordering};

    /// The best set of this machine.
    #[derive(Clone, Copy)]
    pub(super) enum Best {
        Neither,
        /// AVX2 and F16C.
        Avx2,
        /// These, and AVX-512 F, BW, VL and VNNI.
        Avx512,
    }

    const UNKNOWN: u8 = 0;

    /// CPUID leaves a virtual machine, which costs microseconds: ask once.
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);

    pub(super) fn best() -> Best {
        match ANSWER.load(Ordering::Relaxed) {
            UNKNOWN => {
                let best = ask();
                ANSWER.store(1 + best as u8, Ordering::Relaxed);
                best
            }
            1 => Best::Neither,
            2 => Best::Avx2,
            _ => Best::Avx512,
        }
    }

    fn ask() -> Best {
        const XSAVE_BY_SYSTEM: u32 = 1 << 27;
        const AVX: u32 = 1 << 28;
        const F16C: u32 = 1 << 29;
        const AVX2: u32 = 1 << 5;
        const F_BW_VL: u32 = 1 << 16 | 1 << 30 | 1 << 31;
        const VNNI: u32 = 1 << 11;
        const XMM_AND_YMM_STATE: u64 = 0b110;
        const MASK_AND_ZMM_STATE: u64 = 0b1110_0000;
        if __get_cpuid_max(0).0 < 7 {
            return Best::Neither;
        }
        let wanted = XSAVE_BY_SYSTEM | AVX | F16C;
        if __cpuid(1).ecx & wanted != wanted {
            return Best::Neither;
        }
        // SAFETY: the OSXSAVE bit, checked above, says that XGETBV exists and may be used.
        let saved = unsafe { xgetbv_0() };
        let extended = __cpuid_count(7, 0);
        if saved & XMM_AND_YMM_STATE != XMM_AND_YMM_STATE || extended.ebx & AVX2 == 0 {
            return Best::Neither;
        }
        let all = extended.ebx & F_BW_VL == F_BW_VL && extended.ecx & VNNI != 0;
        if all && saved & MASK_AND_ZMM_STATE == MASK_AND_ZMM_STATE { Best::Avx512 } else { Best::Avx2 }
    }

    /// # Safety
    /// The processor must have XSAVE and the operating system must have enabled it.
    #[target_feature(enable = "xsave")]
    unsafe fn xgetbv_0() -> u64 {
        // SAFETY: the caller's promise.
        unsafe { _xgetbv(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn detection_agrees_with_std() {
        let mut expected = vec!["scalar"];
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c") {
            expected.push("avx2");
            if std::is_x86_feature_detected!("avx512f")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512vl")
                && std::is_x86_feature_detected!("avx512vnni")
            {
                expected.push("avx512");
            }
        }
        assert_eq!(InstructionSet::available().map(InstructionSet::name).collect::<Vec<_>>(), expected);
        assert_eq!(Some(&InstructionSet::detect().name()), expected.last());
    }

    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    #[test]
    fn every_aarch64_processor_has_neon() {
        assert_eq!(
            InstructionSet::available().map(InstructionSet::name).collect::<Vec<_>>(),
            ["scalar", "neon"]
        );
    }

    #[test]
    fn the_scalar_reference_is_always_there() {
        assert_eq!(InstructionSet::available().next(), Some(InstructionSet::SCALAR));
    }
}
