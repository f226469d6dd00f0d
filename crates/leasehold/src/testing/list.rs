//! List of all cases for locks, and the macro that generates a test for each. The capabilities that
//! a case needs follow its name in parentheses, named as in
//! [`Capabilities`](crate::store::Capabilities); an engine without them does not run the case, which
//! [`Fixture::can`](crate::testing::Fixture::can) reports.

/// Generates one test per case. The argument is the path, from the crate's root, of an
/// `async fn() -> Fixture`.
///
/// ```text
/// mod memory {
///     async fn fresh() -> leasehold::testing::Fixture { … }
///     leasehold::lock_conformance!(crate::memory::fresh);
/// }
/// ```
#[macro_export]
macro_rules! lock_conformance {
    ($fresh:path) => {
        $crate::conformance_tests! { $fresh, cases;
            exclusive:
                a_free_lock_is_granted
                a_held_lock_is_refused_and_the_conflict_names_the_holder
                a_repeated_request_gets_the_same_lease
                a_lease_is_valid_until_exactly_its_expiry (exact)
                an_expired_lease_is_taken_over_and_reported
                a_takeover_names_the_previous_lease (takeovers)
                tokens_rise_across_release_expiry_and_force
                a_token_is_never_less_than_the_clock
                a_renewal_extends_the_lease_from_now
                a_renewal_may_change_the_ttl
                only_the_exact_lease_renews
                an_expired_lease_cannot_be_renewed
                only_the_exact_lease_releases
                a_second_release_is_not_held
                a_lease_released_by_another_client_is_not_released_again
                a_release_with_at_least_keeps_the_lock_held
                of_sixteen_concurrent_callers_one_acquires
                locks_with_other_names_are_independent
            ;
            shared:
                shared_holders_coexist (shares)
                an_exclusive_request_waits_for_every_shared_holder (shares)
                shared_requests_behind_an_exclusive_waiter_wait (shares)
                each_shared_lease_expires_by_itself (shares)
                a_shared_request_does_not_overtake_an_exclusive_waiter (shares)
                shared_waiters_at_the_front_are_granted_together (shares)
                a_counted_lock_grants_its_slots_and_no_more (shares)
                the_smallest_number_of_slots_applies (shares)
                a_freed_slot_goes_to_the_queue (shares)
            ;
            queue:
                a_release_hands_over_to_the_first_ticket (queues)
                a_handed_over_lease_is_confirmed_by_a_repeated_request (queues)
                tickets_are_granted_in_order_of_arrival (queues)
                a_higher_priority_is_granted_first (queues)
                a_long_wait_outranks_a_higher_priority_that_came_late (queues)
                no_request_overtakes_a_ticket (queues)
                a_repeated_request_keeps_its_position (queues)
                a_ticket_that_is_not_refreshed_expires (queues)
                a_dead_waiter_delays_the_next_by_its_ticket_ttl_only (queues)
                a_withdrawal_removes_the_ticket (queues)
                a_withdrawal_returns_a_grant_that_the_waiter_never_saw (queues)
                a_withdrawn_exclusive_ticket_lets_shared_waiters_in (queues)
                the_last_attempt_removes_the_ticket (queues)
                a_queue_has_a_maximum_length (queues quick)
                a_release_wakes_the_waiter_that_is_granted (queues)
                a_lease_is_never_delivered_to_a_waiter_for_another_lock (queues)
                a_peek_shows_the_lease_that_a_ticket_has_become (queues)
                a_peek_reports_that_a_lease_or_ticket_has_ended (queues)
                a_refreshed_ticket_causes_no_other_request (queues)
                a_long_queue_is_refreshed_and_granted_in_order (queues)
            ;
            admin:
                a_holder_learns_of_a_release_request
                a_release_request_for_a_free_lock_is_not_held
                a_force_release_compares_the_token
                a_force_release_raises_the_token
                a_force_release_hands_over (queues)
                a_lease_that_is_not_renewed_can_be_stolen
                a_stealing_request_waits_in_the_queue (queues)
                a_stealing_request_ends_only_conflicting_leases (shares)
                a_retained_lease_cannot_be_stolen
            ;
            sweep:
                a_sweep_removes_expired_leases_and_grants_waiters (queues)
                a_sweep_never_ends_a_live_lease (queues)
                two_concurrent_sweeps_are_safe
                leases_of_dead_processes_are_swept_before_they_expire (queues)
                a_restart_frees_the_leases_of_that_boot (queues)
                a_restart_gives_other_leases_their_whole_ttl (exact)
            ;
            forget:
                an_idle_lock_is_forgotten (forgets_locks)
                a_forgotten_lock_is_free_and_its_history_stays (forgets_locks)
                a_lock_that_is_held_awaited_or_retained_is_not_forgotten (forgets_locks)
                a_recently_granted_lock_is_not_forgotten (forgets_locks)
                an_expired_lease_is_swept_before_its_lock_is_forgotten (forgets_locks)
                tokens_rise_after_forgetting_with_a_clock_set_back (forgets_locks)
                concurrent_forgetting_and_acquiring_lose_nothing (forgets_locks)
                one_pass_forgets_at_most_its_limit (forgets_locks)
            ;
            listing:
                an_unknown_lock_has_no_record
                a_stored_record_is_returned_unchanged (shares)
                locks_are_listed_by_name_in_pages
                locks_are_listed_by_prefix
                locks_are_listed_by_state (queues)
                names_with_special_characters_are_stored_verbatim
            ;
            history:
                every_change_is_recorded_once_and_in_order (queues)
                an_operation_without_effect_records_no_event
                renewals_are_counted_and_not_recorded
                a_logged_renewal_is_recorded (queues renewals)
                history_is_read_in_pages_both_ways
                replaying_the_history_gives_the_lock (shares)
            ;
            several:
                the_first_lock_is_held_while_the_second_is_awaited
                losing_the_first_lock_while_waiting_starts_again
                losing_one_lock_releases_the_others
            ;
            notices:
                a_holder_is_notified_of_a_forced_release (pushes)
                a_holder_learns_of_changes_before_its_subscription (pushes)
                a_holder_learns_of_a_shorter_ttl_before_its_subscription (pushes)
                a_holder_is_notified_of_a_release_request (pushes)
                a_holder_is_notified_of_a_release_by_another_client (pushes)
                a_worker_is_notified_of_a_cancellation (pushes)
            ;
        }
    };
}

/// Generates the tests of a list: one module per group, one test per case.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($fresh:path, $cases:ident; $($group:ident: $($case:ident $(($($need:ident)+))?)+;)+) => {
        $(mod $group {
            $(#[tokio::test]
            async fn $case() {
                let fixture = $fresh().await;
                if fixture.can(stringify!($case), &[$($(stringify!($need)),+)?]) {
                    $crate::testing::$cases::$group::$case(fixture.into()).await;
                }
            })+
        })+
    };
}

/// Panics if one of the cases in the files of this folder is not in the list.
#[cfg(test)]
pub(super) fn every_case_is_in(list: &str, folder: &str) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testing").join(folder);
    let files = std::fs::read_dir(folder).unwrap();
    let text: String = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let names = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 50, "only {} cases were found", names.len());
    for name in names {
        let is_listed = |end| list.contains(&format!("                {name}{end}"));
        assert!(is_listed("\n") || is_listed(" ("), "{name} is not in the list");
    }
}

#[cfg(test)]
mod tests {
    use super::every_case_is_in;

    /// A case that is written but not listed would never run.
    #[test]
    fn every_case_is_listed() {
        every_case_is_in(include_str!("list.rs"), "cases");
    }
}
