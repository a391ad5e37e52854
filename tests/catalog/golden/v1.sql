BEGIN TRANSACTION;
CREATE TABLE bindings (
                tenant text not null,
                position bigint not null,
                filter text not null,
                topic_id bigint not null,
                primary key (tenant, position),
                unique (tenant, filter),
                foreign key (tenant, topic_id) references topics (tenant, topic_id)
                    on delete cascade
            );
INSERT INTO "bindings" VALUES('default',0,'plant/+/temp',2);
CREATE TABLE consumers (
                tenant text not null,
                topic_id bigint not null,
                consumer text not null,
                created_at bigint not null,
                primary key (tenant, topic_id, consumer),
                foreign key (tenant, topic_id) references topics (tenant, topic_id)
                    on delete cascade
            );
INSERT INTO "consumers" VALUES('default',2,'billing',1700000000000000);
CREATE TABLE counters (
                counter text not null primary key,
                next_value bigint not null
            );
INSERT INTO "counters" VALUES('topic_id',3);
CREATE TABLE positions (
                tenant text not null,
                topic_id bigint not null,
                consumer text not null,
                epoch bigint not null,
                next_offset bigint not null,
                saved_at bigint not null,
                primary key (tenant, topic_id, consumer),
                foreign key (tenant, topic_id, consumer)
                    references consumers (tenant, topic_id, consumer) on delete cascade
            );
INSERT INTO "positions" VALUES('default',2,'billing',1,42,1700000000000000);
CREATE TABLE schema_version (version bigint primary key);
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE tenants (
                tenant text not null primary key,
                created_at bigint not null
            );
INSERT INTO "tenants" VALUES('default',1700000000000000);
CREATE TABLE topics (
                tenant text not null references tenants (tenant),
                topic_id bigint not null unique,
                key text not null,
                declared text not null,
                settings text not null,
                created_at bigint not null,
                primary key (tenant, topic_id),
                unique (tenant, key)
            );
INSERT INTO "topics" VALUES('default',2,'sensors','Sensors','{"durability":"fsync"}',1700000000000000);
CREATE INDEX bindings_of_topic on bindings (tenant, topic_id);
COMMIT;
