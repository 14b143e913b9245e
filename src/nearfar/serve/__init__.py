"""The page of a run in a browser: search, classes, map, scores, audit; and the JSON API behind it.

`collection.open_collection(run)` opens what is served, `api.create_app(collection)` is the application,
`serving.guarded(app)` puts its guard before it and `serving.serve(run)` runs all of it. Needs `pip install
'nearfar[web]'`.
"""
