//! The promises of an engine, as cases that every engine passes. A new engine is one line at the
//! end of this file and a [`Ground`] to stand on.
//!
//! Time is simulated: no case waits for a deadline.

mod alerts;
mod crashes;
mod data;
mod embedded;
mod ground;
mod hearing;
mod redis;
mod roster;
mod units;
mod world;

/// Stamps the suite in for one kind of ground.
macro_rules! conformance {
    ($name:ident, $ground:ty: $($file:ident { $($case:ident)* })*) => {
        mod $name {
            $($(
                #[tokio::test]
                async fn $case() {
                    super::$file::$case(super::world::World::<$ground>::new().await).await;
                }
            )*)*
        }
    };
}

/// Every case there is; each engine gets them all.
macro_rules! every_case {
    ($name:ident, $ground:ty) => {
        conformance! { $name, $ground:
            crashes {
                promise_01_recorded_means_applied
                promise_01_what_a_crash_loses_is_blind_time
                promise_01_what_a_crash_loses_is_blind_time_however_short_and_however_soon
                promise_01_what_a_crash_loses_is_no_transition
                promise_02_a_crash_in_the_middle_of_a_storm_takes_nobody_twice_and_loses_nobody
                promise_07_crashes_between_the_steps_of_telling_change_no_id
                promise_11_a_crash_forgets_no_blind_time
                a_crash_does_not_forget_who_attends_and_which_sessions_are_kept
            }
            units {
                promise_02_each_silence_is_taken_by_exactly_one_caller
                promise_03_taking_writes_record_and_outbox_in_one_step
                promise_04_an_older_or_repeated_heartbeat_never_moves_a_deadline_back
                promise_05_a_return_closes_the_record_and_is_told_once
                promise_10_time_is_always_an_argument
                promise_11_blind_time_is_not_silence
                promise_11_what_is_presumed_of_a_silence_is_not_what_was_seen
                promise_11_proof_that_is_always_a_little_late_is_enough
                promise_11_a_unit_that_was_heard_between_two_looks_is_looked_at_anew
                promise_11_nobody_is_offline_while_nothing_is_heard
                promise_12_a_removed_unit_is_never_reported
                promise_13_a_changed_timeout_moves_the_deadline_at_once
                promise_14_a_deadline_at_exactly_now_is_not_yet_passed
                a_look_at_many_judges_each_by_the_time_at_which_it_was_read
                a_look_takes_those_who_are_as_they_were
                of_two_changes_of_one_unit_by_one_look_one_is_applied
                a_record_that_is_opened_once_more_is_listed_once
                promise_15_a_lost_reply_leaves_nothing_that_is_not_repaired
                promise_15_a_key_beside_an_open_record_is_a_return
                a_decision_from_facts_that_changed_is_void
                of_two_changes_of_one_unit_in_one_step_one_is_applied
                as_much_news_is_read_as_was_asked_for_however_it_was_written
                a_unit_that_was_never_seen_is_reported_from_its_registration
                a_key_that_lapsed_while_nobody_looked_is_no_proof_of_silence
                what_a_unit_declares_is_kept_and_obeyed
                a_record_of_a_kind_that_is_gone_is_closed_and_told_once
                records_are_listed_newest_first_page_by_page
                every_unit_is_on_exactly_one_page
                a_kind_admits_no_more_ids_than_it_may_have
                instances_that_share_a_fleet_know_how_many_units_there_are
                instances_that_share_a_fleet_know_its_shortest_timeout
                old_closed_records_are_forgotten_and_open_ones_never
            }
            hearing {
                a_share_has_heard_as_far_as_the_least_of_its_members
                a_session_that_is_kept_is_known_by_how_far_it_has_heard_itself
                a_new_connection_of_a_session_vouches_for_nothing_before_its_first_canary
                what_another_plain_ear_heard_is_not_blind
                a_kind_that_was_not_subscribed_was_not_heard
                a_filter_that_is_added_removed_or_changed_is_blind_while_it_was_not_subscribed
                a_living_unit_of_a_kind_that_was_not_subscribed_is_not_offline
                each_filter_is_heard_to_its_own_moment_by_a_gap_of_its_own
                a_unit_of_a_kind_that_is_not_heard_is_looked_at_seldom_and_told_in_time
                who_attends_holds_nothing_up_before_its_first_canary_by_more_than_itself
                a_member_that_ends_out_of_order_makes_that_time_blind_however_short
                a_member_that_leaves_in_order_leaves_no_trace
                a_member_of_whom_nothing_is_heard_is_released
                a_member_that_comes_again_was_gone
                what_nobody_attended_nobody_heard
                plain_ears_take_the_furthest
                a_plain_ear_and_a_share_take_the_furthest
                each_share_is_for_itself
                a_stranger_is_told_so_and_changes_nothing
                who_says_that_a_stranger_is_gone_changes_nothing
            }
            alerts {
                promise_06_a_dead_holders_lease_comes_back
                promise_06_what_was_taken_over_cannot_be_held_on_to
                promise_06_what_joining_hands_out_is_leased_with_that
                promise_06_what_was_handed_out_together_ends_one_by_one
                promise_06_what_has_ended_cannot_be_held_on_to
                promise_05_a_return_is_told_whatever_group_it_falls_into_now
                promise_05_a_return_is_told_to_those_who_were_told_the_silence
                promise_07_joining_another_group_is_joining_once_more
                promise_07_joining_is_idempotent_also_after_it_was_sent
                promise_07_a_return_that_comes_first_swallows_its_silence
                promise_07_a_unit_that_returns_before_its_group_is_sealed_is_never_told
                who_is_alone_in_a_group_that_is_due_does_not_wait
                promise_08_delivered_is_never_leased_again
                promise_12_the_silence_of_a_removed_unit_is_not_told_any_more
                a_group_waits_and_keeps_its_distance
                a_unit_that_is_back_within_its_own_wait_is_never_told
                a_group_that_members_keep_joining_is_told_all_the_same
                news_of_one_group_is_told_in_order
                a_return_is_not_told_where_its_silence_died
                what_is_kept_for_a_receiver_is_known_and_can_be_discarded
                a_receiver_that_was_absent_is_told_what_is_still_so
                a_large_group_is_told_whole_in_several_notifications
                a_long_blindness_is_told_at_once_and_by_itself
                the_same_news_has_the_same_id
            }
            data {
                of_each_metric_and_unit_the_newest_value_is_kept
                values_are_of_known_units_and_leave_with_them
                every_value_is_on_exactly_one_page
                values_survive_a_crash
            }
            roster {
                a_lease_that_ends_in_the_far_future_owns_nothing
                promise_06_a_lease_that_is_not_renewed_ends
                promise_06_a_dead_instance_and_what_it_held_are_free_within_three_seconds
                instances_see_one_another_and_one_time
                an_instance_that_resigned_is_gone_at_once
                the_time_of_the_fleet_is_never_before_what_was_heard
                an_instance_says_where_it_is_for_as_long_as_it_is_there
            }
        }
    };
}

every_case!(on_redis, super::redis::Single);
every_case!(on_a_cluster_node, super::redis::ClusterNode);
every_case!(on_a_directory, super::embedded::Directory);
