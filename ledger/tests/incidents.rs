//! Incidents of other ledgers, by cause, and the tests here that keep them from happening again. A table only: each test stands
//! with what it tests.
//!
//! | cause | test |
//! | --- | --- |
//! | the key against repeats was kept, the record was not | `grouping`: `a_group_that_cannot_be_committed_acknowledges_nothing` |
//! | delivered twice, billed twice | `accepting`: `a_receipt_sent_again_gets_the_first_answer_byte_for_byte` |
//! | one id, another content | `accepting`: `another_receipt_with_the_same_number_is_a_conflict_with_evidence` |
//! | a cached total was added again | `verifying`: `every_change_is_found_and_its_index_named` |
//! | two settlers at once | `serving`: `two_pollers_at_once_never_credit_twice` |
//! | the last chunk was paid twice | `settling`: `settlements_are_idempotent_and_overlap_with_nothing` |
//! | rounding, once up and once down | `settling`: `credited_is_seven_times_the_bytes` |
//! | an overdrawn payer ran free | `settling`: `an_overdrawn_payer_is_refused_and_nothing_moves` |
//! | a party judged its own work | `findings`: `a_finding_is_refused_from_a_party_and_about_what_is_not_here` |
//! | up and down were swapped | `host/wire`: `up_and_down_cannot_be_swapped` |
//! | what came late was refused | `accepting`: `counters_and_clock_never_fall_and_gaps_may_be_filled_later` |
//! | a crash lost what was earned | `crash`: `one_receipt`, `one_settlement`; `surviving` |
//! | a retry was answered differently | `serving`: `a_resend_over_http_is_answered_byte_for_byte` |
//! | a flipped bit was signed | `publishing`: `a_store_that_lost_or_changed_entries_is_not_signed` |
//! | a full disk damaged a table | `surviving`: `a_full_disk_refuses_and_damages_nothing` |
//! | an entry later than its head; clocks that ran back | `settling`: `clocks_must_agree_and_the_ledger_s_must_not_run_backwards` |
//! | a slow write overwrote a tile | `publishing`: `a_published_file_that_holds_other_bytes_is_never_overwritten` |
//! | weak keys, undefined strictness | `host/wire`: `every_edge_case_of_cctv_is_judged_strictly` |
//! | a write-ahead log was reset wrongly | `store::file`: `sqlite_is_new_enough` |
//! | nothing said where it was damaged | `tamper`: `faults_in_the_files_are_named_by_the_first_entry_that_they_touch` |
//! | convicted work was paid all the same | `findings`: `convicted_work_is_reversed_before_it_posts` |
