"""Who may connect and what each may do: principals, authentication, ACLs and quotas."""
