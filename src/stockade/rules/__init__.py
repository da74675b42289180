"""What is promised and who may ask for what: promises, tiers, requests, profiles, policy.

Read next: ``promises.py`` (the table), ``request.py`` (step 1), ``resolve.py`` (values with
origins), ``load.py`` (the reviewed lists).
"""
