"""Membership of share groups (KIP-932); what they have read of partitions is not kept here."""
