//! A wide-area link in user space, for kernels without netem: two TUN devices, joined with a delay, a rate, a bounded queue
//! and loss.
//!
//! `wan-link TUN_A TUN_B ONE_WAY_MS MBIT_PER_S QUEUE_KIB LOSS_PPM` (MBIT_PER_S 0: no limit) forwards IP packets between the
//! devices until it is killed; `scripts/bench-wan` moves each device into its end's network namespace. Unlike a TCP proxy it
//! leaves one TCP connection end to end, so congestion windows, pacing, loss and queues behave as on a real path. Needs root
//! and /dev/net/tun. No packet leaves before its time; for the last moments before it a thread looks at the clock, a quarter of
//! a processor each way at the most, since one that sleeps wakes when it may. Where neither a rate nor loss is asked for, the packets
//! that a sender makes of one piece cross as one, as network cards cut and join them: a machine that is really far away
//! spends no time of this one's cores on each.

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("wan-link needs Linux: TUN devices and network namespaces");
    std::process::exit(2);
}

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    link::run()
}

#[cfg(target_os = "linux")]
mod link {
    use std::fs::{File, OpenOptions};
    use std::io::{self, Error, Read, Write};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    /// The kernel's `struct ifreq`, as TUNSETIFF reads it.
    #[repr(C)]
    struct InterfaceRequest {
        name: [u8; 16],
        flags: i16,
        pad: [u8; 22],
    }

    /// IFF_TUN | IFF_NO_PI: whole IP packets, nothing before them.
    const TUN_PACKETS: i16 = 0x0001 | 0x1000;
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    /// IFF_VNET_HDR: before each packet stands how it is to be cut and summed. It is handed on as it is.
    const TUN_HEADERS: i16 = 0x4000;
    const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
    /// TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6: whole pieces of TCP, not yet cut into packets nor summed.
    const WHOLE_PIECES: libc::c_ulong = 0x01 | 0x02 | 0x04;
    /// The longest piece, and what stands before it.
    const MOST_BYTES: usize = 65_536 + 64;

    /// How long before a packet's time its thread wakes up to look at the clock: bounds of what is learnt.
    const LEAD_SECONDS: (f64, f64) = (10e-6, 150e-6);
    /// What one sleep ended too late tells at the most: a machine that stood still says nothing about the next one.
    const LATEST_SECONDS: f64 = 500e-6;
    /// One part in so many of the time may be spent looking at the clock.
    const LOOKING_PART: u32 = 4;
    /// And so much at once.
    const MOST_LOOKING: Duration = Duration::from_millis(1);

    /// What one direction of the link does to packets.
    #[derive(Clone, Copy)]
    struct Shape {
        delay: Duration,
        bits_per_second: f64,
        queue_bytes: f64,
        loss_per_million: u64,
    }

    impl Shape {
        /// Nothing is done to single packets.
        fn is_plain(self) -> bool {
            self.bits_per_second <= 0.0 && self.loss_per_million == 0
        }
    }

    pub fn run() -> io::Result<()> {
        let args: Vec<String> = std::env::args().collect();
        let [_, a, b, numbers @ ..] = &args[..] else { return Err(usage()) };
        let numbers: Vec<f64> = numbers.iter().filter_map(|number| number.parse().ok()).collect();
        let [one_way_ms, megabits, queue_kib, loss] = numbers[..] else { return Err(usage()) };
        let shape = Shape {
            delay: Duration::from_secs_f64(one_way_ms / 1000.0),
            bits_per_second: megabits * 1e6,
            queue_bytes: queue_kib * 1024.0,
            loss_per_million: loss as u64,
        };
        be_punctual();
        let (a, b) = (open_tun(a, shape.is_plain())?, open_tun(b, shape.is_plain())?);
        forward(a.try_clone()?, b.try_clone()?, shape);
        forward(b, a, shape);
        println!("up");
        loop {
            std::thread::park();
        }
    }

    fn usage() -> Error {
        let words = "usage: wan-link TUN_A TUN_B ONE_WAY_MS MBIT_PER_S QUEUE_KIB LOSS_PPM";
        Error::new(io::ErrorKind::InvalidInput, words)
    }

    /// Where this is refused the link is only less precise.
    fn be_punctual() {
        let priority = libc::sched_param { sched_priority: 10 };
        // SAFETY: two calls about this process alone, with plain numbers and a struct that outlives the call.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
            libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority);
        }
    }

    /// Opens TUN device `name`, creating it; with `pieces` it gives what TCP sends before it is cut into packets.
    fn open_tun(name: &str, pieces: bool) -> io::Result<File> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        let flags = if pieces { TUN_PACKETS | TUN_HEADERS } else { TUN_PACKETS };
        let mut request = InterfaceRequest { name: [0; 16], flags, pad: [0; 22] };
        if name.len() >= request.name.len() {
            return Err(Error::new(io::ErrorKind::InvalidInput, "a device's name has at most 15 bytes"));
        }
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: the descriptor is open, and the request has the size that the kernel reads and outlives the call.
        if unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &mut request) } < 0 {
            return Err(Error::last_os_error());
        }
        if pieces {
            // SAFETY: the descriptor is open, and the argument is a number. A kernel that refuses cuts the packets itself.
            unsafe { libc::ioctl(device.as_raw_fd(), TUNSETOFFLOAD, WHOLE_PIECES) };
        }
        Ok(device)
    }

    /// Forwards packets one way on two threads: one shapes and stamps, the other waits and writes.
    fn forward(mut from: File, mut to: File, shape: Shape) {
        let (queue, due) = mpsc::channel::<(Instant, Vec<u8>)>();
        std::thread::spawn(move || {
            let mut clock = Clock::new();
            while let Ok((at, packet)) = due.recv() {
                clock.wait_until(at);
                let _ = to.write_all(&packet);
            }
        });
        std::thread::spawn(move || {
            let mut buffer = vec![0; MOST_BYTES];
            let mut line_free = Instant::now();
            let mut random = 88_172_645_463_325_252_u64;
            while let Ok(length) = from.read(&mut buffer) {
                let now = Instant::now();
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                if random % 1_000_000 < shape.loss_per_million {
                    continue;
                }
                let mut leaves = now;
                if shape.bits_per_second > 0.0 {
                    line_free = line_free.max(now);
                    let backlog = (line_free - now).as_secs_f64() * shape.bits_per_second / 8.0;
                    if backlog > shape.queue_bytes {
                        continue; // the queue is full
                    }
                    line_free += Duration::from_secs_f64(length as f64 * 8.0 / shape.bits_per_second);
                    leaves = line_free;
                }
                let _ = queue.send((leaves + shape.delay, buffer[..length].to_vec()));
            }
        });
    }

    /// Waits for a packet's time: asleep, and awake for the last moments. How long those have to be is learnt from how late sleeps end,
    /// which on a busy machine is less than on one that has to wake up first.
    struct Clock {
        late_seconds: f64,
        deviation_seconds: f64,
        /// Time that may be spent looking. Where it is used up, as under a train of packets, the thread sleeps to the end and a bit.
        allowance: Duration,
        since: Instant,
    }

    impl Clock {
        fn new() -> Clock {
            let (late_seconds, deviation_seconds) = (60e-6, 20e-6);
            Clock { late_seconds, deviation_seconds, allowance: MOST_LOOKING, since: Instant::now() }
        }

        /// Returns at `at` or later, never before.
        fn wait_until(&mut self, at: Instant) {
            let now = Instant::now();
            let left = at.saturating_duration_since(now);
            if left.is_zero() {
                return;
            }
            let earned = now.saturating_duration_since(self.since) / LOOKING_PART;
            self.allowance = (self.allowance + earned).min(MOST_LOOKING);
            self.since = now;
            let lead = self.lead();
            let looking = if self.allowance >= lead { lead } else { Duration::ZERO };
            if left > looking {
                let asleep = left - looking;
                std::thread::sleep(asleep);
                self.learn(now.elapsed().saturating_sub(asleep));
            }
            let awake = Instant::now();
            while Instant::now() < at {
                std::hint::spin_loop();
            }
            self.allowance = self.allowance.saturating_sub(awake.elapsed());
        }

        fn lead(&self) -> Duration {
            let (least, most) = LEAD_SECONDS;
            Duration::from_secs_f64((self.late_seconds + 3.0 * self.deviation_seconds).clamp(least, most))
        }

        fn learn(&mut self, late: Duration) {
            let late = late.as_secs_f64().min(LATEST_SECONDS);
            self.deviation_seconds += ((late - self.late_seconds).abs() - self.deviation_seconds) / 8.0;
            self.late_seconds += (late - self.late_seconds) / 8.0;
        }
    }
}
