//! The promises of an engine, as cases that every engine passes. A new engine is one line at the
//! end of this file and a [`Ground`](ground::Ground).
//!
//! Time is simulated: no case waits for a deadline.

mod alerts;
mod cells;
mod crashes;
mod data;
mod embedded;
mod flapping;
mod ground;
mod hearing;
mod incidents;
mod inhibition;
mod kept;
mod mass_offline;
mod pace;
mod redis;
mod roster;
mod routes;
mod several;
mod shared;
mod silences;
mod timers;
mod units;
pub mod world;

/// Makes a test for each of these cases.
macro_rules! with_servers_of_their_own {
    ($ground:ty: $($file:ident::$case:ident)*) => { $(
        #[tokio::test]
        async fn $case() {
            super::$file::$case(super::world::World::<$ground>::new().await).await;
        }
    )* };
}

/// The suite for one kind of ground.
macro_rules! case_by_case {
    (
        $name:ident, $ground:ty: crash { $($of:ident::$crash:ident)* } $($file:ident { $($case:ident)* })*
    ) => {
        mod $name {
            with_servers_of_their_own! { $ground: $($of::$crash)* $($($file::$case)*)* }
        }
    };
}

/// Tests for servers that take seconds to start: the cases of one file share the servers, each with a fleet of its
/// own.
macro_rules! file_by_file {
    (
        $name:ident, $ground:ty: crash { $($of:ident::$crash:ident)* } $($file:ident { $($case:ident)* })*
    ) => {
        mod $name {
            with_servers_of_their_own! { $ground: $($of::$crash)* }
            $(
                #[tokio::test]
                async fn $file() {
                    let shared = <$ground as super::ground::Ground>::new().await;
                    let mut cases = super::shared::Cases::default();
                    $(
                        cases.add(stringify!($case), async {
                            use super::{shared::Shared, world::World};
                            super::$file::$case(World::on(shared.apart()).await).await;
                        });
                    )*
                    cases.pass().await;
                }
            )*
        }
    };
}

/// All cases; every engine runs all of them.
macro_rules! every_case {
    ($by:ident, $name:ident, $ground:ty) => {
        $by! { $name, $ground:
            crash {
                crashes::promise_01_recorded_means_applied
                crashes::promise_01_time_that_a_crash_loses_is_blind
                crashes::promise_01_time_that_a_crash_loses_is_blind_however_short_and_however_soon
                crashes::promise_01_a_crash_loses_no_transition
                crashes::promise_02_a_crash_in_the_middle_of_a_storm_takes_no_unit_twice_and_loses_none
                crashes::promise_07_crashes_between_the_steps_of_a_notification_change_no_id
                crashes::promise_11_a_crash_forgets_no_blind_time
                crashes::a_crash_does_not_forget_members_and_kept_sessions
                hearing::a_filter_that_is_added_removed_or_changed_is_blind_while_it_was_not_subscribed
                hearing::each_filter_is_heard_to_its_own_moment_by_a_gap_of_its_own
                hearing::a_unit_is_held_only_by_the_broker_that_heard_it_last
                cells::a_change_set_applies_in_full_if_all_that_it_expects_is_so
                data::values_survive_a_crash
                silences::silences_survive_a_crash
                flapping::a_flapping_unit_is_known_to_every_instance_and_after_a_crash
                inhibition::units_that_inhibit_others_are_known_to_every_instance_and_survive_a_crash
                silences::an_acknowledgement_is_kept_with_its_record_and_ends_with_it
                timers::promise_16_a_crash_leaves_a_timer_waiting_or_fired
                timers::promise_19_an_at_most_once_timer_is_never_attempted_twice
                alerts::ten_thousand_silences_are_one_notification_and_an_update_says_how_many_last
            }
            units {
                promise_02_each_silence_is_taken_by_exactly_one_caller
                what_an_outbox_had_at_a_moment_is_known_until_it_has_left
                promise_03_taking_writes_record_and_outbox_in_one_step
                promise_04_an_older_or_repeated_heartbeat_never_moves_a_deadline_back
                promise_05_a_return_closes_the_record_and_is_notified_once
                promise_10_time_is_always_an_argument
                promise_11_blind_time_is_not_silence
                promise_11_a_presumed_last_seen_time_is_not_an_observed_one
                promise_11_proof_that_is_always_a_little_late_is_enough
                promise_11_a_unit_that_was_heard_between_two_checks_is_checked_anew
                promise_11_no_unit_is_marked_offline_while_nothing_is_heard
                promise_12_a_removed_unit_is_never_reported
                promise_13_a_changed_timeout_moves_the_deadline_at_once
                promise_14_a_deadline_at_exactly_now_is_not_yet_passed
                a_check_of_many_units_judges_each_by_the_time_of_its_read
                a_check_takes_only_units_that_have_not_changed
                a_proof_opens_each_record_once_and_a_heartbeat_meanwhile_is_a_return
                announcements_of_one_unit_count_in_their_order
                a_heartbeat_after_an_announcement_counts_at_any_instance_where_clocks_are_behind
                of_two_changes_of_one_unit_by_one_check_one_is_applied
                a_record_that_is_opened_once_more_is_listed_once
                promise_15_a_lost_reply_leaves_nothing_that_is_not_repaired
                promise_15_a_key_beside_an_open_record_is_a_return
                a_decision_from_facts_that_changed_is_void
                of_two_changes_of_one_unit_in_one_step_one_is_applied
                the_outbox_is_read_up_to_the_limit_however_it_was_written
                a_unit_that_was_never_seen_is_reported_from_its_registration
                a_key_that_expired_between_two_checks_is_no_proof_of_silence
                declarations_of_a_unit_are_kept_and_obeyed
                the_last_declaration_of_a_unit_counts_also_within_one_batch
                the_last_declaration_of_a_unit_counts_whichever_instance_heard_it
                a_record_of_a_removed_kind_is_closed_and_notified_once
                records_are_listed_newest_first_page_by_page
                the_history_of_a_unit_is_its_records_newest_first
                records_are_read_in_the_order_in_which_they_were_opened_and_closed
                every_unit_is_on_exactly_one_page_and_steps_without_units_are_left_out
                a_kind_admits_no_more_ids_than_it_may_have
                instances_that_share_a_fleet_know_how_many_units_there_are
                instances_that_share_a_fleet_know_its_shortest_timeout
                instances_that_share_a_fleet_know_whether_their_configurations_differ
                old_closed_records_are_forgotten_and_open_ones_never
            }
            hearing {
                a_share_has_heard_as_far_as_the_least_of_its_members
                a_session_that_is_kept_is_known_by_how_far_it_has_heard_itself
                a_new_connection_of_a_session_proves_nothing_before_its_first_canary
                time_that_another_plain_subscription_heard_is_not_blind
                a_kind_that_was_not_subscribed_was_not_heard
                a_living_unit_of_a_kind_that_was_not_subscribed_is_not_offline
                a_unit_of_a_kind_that_is_not_heard_is_checked_seldom_and_reported_in_time
                a_new_member_delays_nothing_before_its_first_canary_but_itself
                a_member_that_ends_out_of_order_makes_that_time_blind_however_short
                a_member_that_leaves_in_order_leaves_no_trace
                a_member_that_sends_no_canary_is_released
                a_member_that_comes_again_was_gone
                time_without_a_member_is_not_heard
                plain_subscriptions_take_the_furthest
                a_plain_subscription_and_a_share_take_the_furthest
                each_share_is_for_itself
                what_a_share_loses_at_one_of_several_brokers_is_blind_for_its_kinds_alone
                an_unknown_member_is_refused_and_changes_nothing
                a_report_that_an_unknown_member_is_gone_changes_nothing
            }
            alerts {
                promise_06_a_dead_holders_lease_comes_back
                promise_06_a_delivery_that_was_taken_over_cannot_be_extended
                promise_06_a_delivery_that_joining_hands_out_is_leased_in_the_same_step
                promise_06_deliveries_leased_together_end_one_by_one
                promise_06_a_delivery_that_has_ended_cannot_be_extended
                promise_05_a_return_is_notified_whatever_group_it_falls_into_now
                promise_05_a_return_goes_to_the_receivers_that_were_notified_of_the_silence
                promise_05_a_return_is_notified_when_an_earlier_silence_of_its_record_is_forgotten
                promise_07_a_record_that_joins_another_group_too_is_notified_once
                promise_07_transitions_of_one_call_join_the_groups_of_their_records_in_any_order
                promise_07_joining_is_idempotent_also_after_it_was_sent
                promise_07_a_return_that_joins_first_cancels_its_silence
                promise_07_a_unit_that_returns_before_its_group_is_sealed_is_never_notified
                the_members_of_a_due_group_do_not_wait
                promise_08_delivered_is_never_leased_again
                promise_12_the_silence_of_a_removed_unit_is_no_longer_notified
                a_group_keeps_group_wait_and_group_interval
                a_unit_that_returns_within_its_own_wait_is_never_notified
                a_group_that_members_keep_joining_is_sealed_all_the_same
                notifications_of_one_group_are_handed_out_in_order
                a_lane_that_has_left_the_queue_is_due_again_with_its_next_notification
                a_return_does_not_go_to_a_receiver_whose_silence_became_a_dead_letter
                the_backlog_of_a_receiver_is_counted_and_can_be_discarded
                a_receiver_that_was_absent_is_notified_of_what_still_holds
                a_long_blind_interval_is_notified_at_once_and_by_itself
                the_same_members_give_the_same_id
            }
            pace {
                promise_05_a_recovery_of_everything_waits_no_longer_than_group_wait
                silences_within_a_second_of_the_first_are_in_the_first_notification
                a_silence_that_joins_while_its_group_is_sealed_follows_at_once
                silences_within_a_second_are_together_whatever_the_wait
                a_group_of_one_unit_gathers_nothing
                a_removed_unit_does_not_hold_up_the_return_of_the_others
                a_silence_is_notified_only_if_it_lasts
                recoveries_are_notified_as_the_route_says
                receivers_are_reminded_while_a_silence_lasts
                a_silence_that_lasts_is_notified_to_others_and_so_is_its_return
                a_reminder_that_is_given_up_hides_no_return
                a_receiver_for_which_a_notification_waits_gets_no_reminder_beside_it
                each_group_of_a_record_says_which_receivers_were_notified_of_it
                receivers_of_an_escalation_are_reminded_of_what_was_escalated
                an_archived_unit_is_neither_reminded_of_nor_escalated_and_its_return_is_notified
                neither_reminder_nor_escalation_is_notified_while_the_breaker_holds
                an_acknowledgement_or_an_alert_silence_stops_reminders_and_escalation
                an_alert_silence_holds_what_waits_when_it_begins
                the_rest_of_a_storm_that_joins_late_follows_its_notification
                neither_reminder_nor_escalation_is_notified_while_the_route_is_muted
                a_muted_route_notifies_of_what_still_holds_when_the_mute_is_over
            }
            routes {
                promise_05_a_return_goes_to_the_receivers_that_its_group_has_no_more
                a_record_of_several_routes_is_notified_in_the_group_of_each
                each_route_has_a_pace_of_its_own
                a_group_of_a_route_that_is_gone_is_notified_all_the_same
                joining_hands_out_silences_of_several_routes_up_to_the_room_of_each_receiver
                a_receiver_of_two_routes_is_notified_by_one_where_the_other_gave_up
            }
            incidents {
                a_notification_tells_of_the_incidents_that_it_was_judged_by_first
                silences_that_last_are_found_by_when_receivers_were_notified
            }
            kept {
                every_attempt_is_on_record_for_a_while
                the_record_of_attempts_of_a_partition_is_bounded
                the_newest_letters_and_attempts_of_all_partitions_come_first
                a_dead_letter_is_delivered_again_under_its_id_and_can_be_purged
                notifications_of_many_lanes_and_receivers_are_queued_together
                returns_before_a_dead_letter_that_is_delivered_again_are_left_out
                what_waits_in_a_group_can_be_ended_in_its_order_without_a_lease
                what_waits_goes_to_the_fallback_once
                a_fallback_is_notified_of_the_returns_of_what_it_was_notified_of
                a_fallback_is_notified_of_the_end_of_blindness_that_it_was_notified_of
            }
            cells {
                of_change_sets_that_expect_the_same_one_applies
                what_instances_add_to_a_cell_at_the_same_time_is_summed
            }
            data {
                of_each_metric_and_unit_the_newest_value_is_kept
                values_belong_to_known_units_and_are_removed_with_them
                every_value_is_on_exactly_one_page
            }
            mass_offline {
                the_breaker_trips_once_for_all_instances_and_is_released_once
                units_that_operators_silenced_are_in_no_figure_of_the_breaker_and_do_not_keep_it
                units_that_operators_silence_while_the_breaker_holds_are_as_offline_as_before
                units_that_were_registered_a_moment_ago_neither_trip_the_breaker_nor_hide_a_mass
                units_that_nobody_knew_a_minute_ago_neither_trip_the_breaker_nor_hide_a_mass
            }
            silences {
                silences_are_added_changed_and_ended_and_every_instance_knows_them
                a_pause_moves_the_deadline_at_once_and_ends_when_it_is_ended
                of_two_changes_of_silences_at_the_same_time_none_is_lost
                silences_that_ended_long_ago_are_removed_and_the_audit_is_bounded
            }
            timers {
                promise_16_a_timer_fires_once
                promise_16_deliveries_that_firing_hands_out_are_leased_in_the_same_step
                promise_17_a_cancel_that_answers_yes_is_never_fired
                promise_17_a_batch_cancels_only_what_is_still_as_it_was_read
                promise_18_a_change_that_answers_yes_moves_it
                promise_19_an_at_most_once_timer_goes_to_no_fallback
                a_timer_is_registered_shown_changed_and_cancelled
                the_state_of_a_timer_is_true_after_it_is_given_up_replayed_and_purged
                a_timer_that_is_registered_again_before_it_is_delivered_is_delivered_twice
                timers_are_listed_by_moment_and_id_page_by_page
                timers_that_ended_are_forgotten_when_their_class_says_so
                a_timer_of_a_type_that_is_not_configured_waits
            }
            roster {
                a_lease_that_ends_in_the_far_future_owns_nothing
                promise_06_a_lease_that_is_not_renewed_ends
                promise_06_a_dead_instance_and_what_it_held_are_free_within_three_seconds
                instances_see_one_another_and_share_one_time
                an_instance_that_resigned_is_gone_at_once
                the_time_of_the_fleet_is_never_before_what_was_heard
                what_an_instance_announces_counts_until_it_is_forgotten
            }
        }
    };
}

every_case!(case_by_case, on_redis, super::redis::Single);
every_case!(file_by_file, on_a_cluster_node, super::redis::ClusterNode);
every_case!(file_by_file, on_a_cluster, super::several::ThreePrimaries);
every_case!(file_by_file, on_sentinel, super::several::Watched);
every_case!(case_by_case, on_a_directory, super::embedded::Directory);
