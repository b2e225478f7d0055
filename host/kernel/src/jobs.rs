//! The table of a request for several experts: who they are, and how many of the rows behind the table are whose.
//!
//! The data of such a request is a table of fixed length, the rows of all jobs back to back, and then room for their results,
//! which the process writes one job after the other: the rows stay where they are while it computes.

/// Most jobs of a request.
pub const MAX_JOBS: usize = 256;
/// Bytes of a job in the table.
pub const JOB_BYTES: usize = 32;
/// Bytes of the table, however many jobs there are.
pub const TABLE_BYTES: usize = MAX_JOBS * JOB_BYTES;

/// Rows through one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The instance.
    pub instance: u64,
    /// The expert.
    pub expert: u64,
    /// Rows.
    pub count: u32,
    /// Bytes of the rows.
    pub length: u64,
}

impl Job {
    /// As it stands in the table.
    pub fn encode(self) -> [u8; JOB_BYTES] {
        let mut bytes = [0; JOB_BYTES];
        let fields = [self.instance, self.expert, u64::from(self.count), self.length];
        for (to, field) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *to = field.to_le_bytes();
        }
        bytes
    }

    fn decode(bytes: &[u8; JOB_BYTES]) -> Option<Job> {
        let [instance, expert, count, length] = *bytes.as_chunks::<8>().0 else { return None };
        Some(Job {
            instance: u64::from_le_bytes(instance),
            expert: u64::from_le_bytes(expert),
            count: u32::try_from(u64::from_le_bytes(count)).ok()?,
            length: u64::from_le_bytes(length),
        })
    }
}

/// The jobs of a request's data, each with its rows; `None` where table and rows do not fit each other.
pub fn jobs_of(data: &[u8], jobs: u64) -> Option<Vec<(Job, &[u8])>> {
    let jobs = usize::try_from(jobs).ok().filter(|jobs| (1..=MAX_JOBS).contains(jobs))?;
    let (table, mut rows) = data.split_at_checked(TABLE_BYTES)?;
    let mut found = Vec::with_capacity(jobs);
    for entry in table.as_chunks::<JOB_BYTES>().0.iter().take(jobs) {
        let job = Job::decode(entry)?;
        let (mine, others) = rows.split_at_checked(usize::try_from(job.length).ok()?)?;
        found.push((job, mine));
        rows = others;
    }
    rows.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(jobs: &[Job], rows: &[u8]) -> Vec<u8> {
        let mut data: Vec<u8> = jobs.iter().flat_map(|job| job.encode()).collect();
        data.resize(TABLE_BYTES, 0);
        data.extend_from_slice(rows);
        data
    }

    #[test]
    fn every_job_has_its_own_rows() {
        let jobs = [
            Job { instance: u64::MAX, expert: 3, count: u32::MAX, length: 2 },
            Job { instance: 0, expert: 4, count: 1, length: 0 },
            Job { instance: 7, expert: 5, count: 2, length: 3 },
        ];
        let data = data(&jobs, b"abcde");
        let found = jobs_of(&data, 3).unwrap();
        assert_eq!(found, [(jobs[0], &b"ab"[..]), (jobs[1], &b""[..]), (jobs[2], &b"cde"[..])]);
    }

    #[test]
    fn a_table_that_does_not_fit_its_rows_is_none() {
        let job = Job { instance: 1, expert: 2, count: 1, length: 4 };
        assert!(jobs_of(&data(&[job], b"rows"), 1).is_some());
        let cases: [(Vec<Job>, &[u8], u64); 7] = [
            (vec![job], b"row", 1),
            (vec![job], b"rows and more", 1),
            (vec![job, job], b"rows", 2),
            (vec![Job { length: u64::MAX, ..job }], b"rows", 1),
            (vec![job], b"rows", 0),
            (vec![job], b"rows", u64::MAX),
            (vec![Job { length: 0, ..job }; MAX_JOBS], b"", MAX_JOBS as u64 + 1),
        ];
        for (jobs, rows, count) in cases {
            assert_eq!(jobs_of(&data(&jobs, rows), count), None, "{} jobs, {count} told", jobs.len());
        }
        assert_eq!(jobs_of(&[0; TABLE_BYTES - 1], 1), None, "no whole table");
        let mut count = data(&[job], b"rows");
        count[20] = 1;
        assert_eq!(jobs_of(&count, 1), None, "more rows than there can be");
        let most = vec![Job { length: 0, ..job }; MAX_JOBS];
        assert_eq!(jobs_of(&data(&most, b""), MAX_JOBS as u64).map(|jobs| jobs.len()), Some(MAX_JOBS));
    }
}
